// A forked child for tests in which processes die. Fork only while the test has a single thread.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <new>
#include <thread>

namespace neuraldbg::testing {

class ChildProcess {
 public:
  // The child runs `body` and ends with its result, without the destructors of the test.
  explicit ChildProcess(const std::function<int()>& body) {
    pid_ = ::fork();
    if (pid_ == 0) ::_exit(body());
  }
  ~ChildProcess() {
    if (pid_ > 0) Kill();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Kill() {
    ::kill(pid_, SIGKILL);
    Wait();
  }
  pid_t pid() const { return pid_; }
  // Exit status, or -signal.
  int Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

// One object in memory that parent and children share.
template <typename T>
class SharedObject {
 public:
  SharedObject() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    object_ = new (memory) T{};
  }
  ~SharedObject() { ::munmap(object_, sizeof(T)); }
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

 private:
  T* object_;
};

// Waits until `condition` holds; false after a time that only a hung process needs.
inline bool WaitFor(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace neuraldbg::testing
