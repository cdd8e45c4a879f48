// A child process of a test, killed and reaped at the latest by the destructor, with what it printed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace neuraldbg {

class ChildProcess {
 public:
  // Standard output goes to a pipe, standard error to `error_path`. `environment` replaces the inherited one.
  ChildProcess(const std::vector<std::string>& command, const std::string& error_path,
               const std::vector<std::string>& environment);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int number);
  // Waits for the end; exit code, or 128 + signal. Aborts the test program after two minutes.
  int Wait();
  bool Running();
  // Next line of standard output, without its end; empty at the end of the stream.
  std::string ReadLine();
  // The rest of standard output; after it Wait returns soon.
  std::string ReadAll();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  int code_ = -1;
  std::string buffer_;
};

std::string ReadFile(const std::string& path);

}  // namespace neuraldbg
