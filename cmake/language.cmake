# Language level, warnings and sanitizers: one place, applied to every target of ours through neuraldbg_target().
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

if(NEURALDBG_SANITIZER)
  add_compile_options(-fsanitize=${NEURALDBG_SANITIZER} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${NEURALDBG_SANITIZER})
endif()

# Include root is the source root, so that every include names its room.
function(neuraldbg_target name)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wconversion -Werror)
  target_compile_definitions(${name} PUBLIC NEURALDBG_VERSION="${PROJECT_VERSION}")
endfunction()

# neuraldbg_test(name SOURCES … LINK …): a GoogleTest binary registered with ctest under `name`.
function(neuraldbg_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  neuraldbg_target(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300)
endfunction()
