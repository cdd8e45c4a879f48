# gRPC, protobuf and abseil: found once, here. neuraldbg_link_grpc(target) links them; a room that needs abseil alone says
# find_package(absl) and gets the same targets, because they are global.
#
# Debian's CMake packages describe shared libraries only, but Debian ships the .a files too. A wheel must run on machines
# without either, so release builds point the imported targets at the archives: one place, and no binary can hold half
# of gRPC twice.
include_guard(GLOBAL)

if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT NEURALDBG_SANITIZER)
  set(neuraldbg_static_default ON)
else()
  set(neuraldbg_static_default OFF)
endif()
option(NEURALDBG_STATIC_GRPC "Link gRPC, protobuf, abseil and what they need from static archives"
       ${neuraldbg_static_default})

# Without this an imported target is known only in the directory that found it, and would be found again, as a shared
# library, in the next.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
set(Protobuf_USE_STATIC_LIBS ${NEURALDBG_STATIC_GRPC})
set(OPENSSL_USE_STATIC_LIBS ${NEURALDBG_STATIC_GRPC})
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(gRPC CONFIG REQUIRED)
unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)

# lib<name>.so[.version] -> lib<name>.a beside it; a library without an archive keeps its shared form.
function(neuraldbg_use_archive target)
  foreach(property IMPORTED_LOCATION IMPORTED_LOCATION_NONE IMPORTED_LOCATION_RELEASE)
    get_target_property(location ${target} ${property})
    if(NOT location)
      continue()
    endif()
    string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
    if(EXISTS "${archive}")
      set_target_properties(${target} PROPERTIES ${property} "${archive}")
    endif()
  endforeach()
endfunction()

if(NEURALDBG_STATIC_GRPC)
  get_directory_property(neuraldbg_imported IMPORTED_TARGETS)
  foreach(target IN LISTS neuraldbg_imported)
    get_target_property(type ${target} TYPE)
    if(target MATCHES "^(gRPC|absl|protobuf|c-ares|re2|ZLIB|OpenSSL)::" AND NOT type MATCHES "EXECUTABLE|INTERFACE")
      neuraldbg_use_archive(${target})
    endif()
  endforeach()
  # re2 comes from pkg-config, as a bare "-lre2".
  find_library(NEURALDBG_RE2_ARCHIVE libre2.a)
  if(TARGET re2::re2 AND NEURALDBG_RE2_ARCHIVE)
    set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES "${NEURALDBG_RE2_ARCHIVE};Threads::Threads")
  endif()
endif()

# The same for a library that pkg-config found: `target` then links the archive and what follows.
function(neuraldbg_prefer_archive target archive)
  if(NOT NEURALDBG_STATIC_GRPC)
    return()
  endif()
  find_library(NEURALDBG_ARCHIVE_${archive} ${archive} REQUIRED)
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${NEURALDBG_ARCHIVE_${archive}};${ARGN}")
endfunction()

function(neuraldbg_link_grpc target)
  target_link_libraries(${target} PUBLIC gRPC::grpc++_reflection gRPC::grpc++ protobuf::libprotobuf)
endfunction()
