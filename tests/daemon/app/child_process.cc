#include "tests/daemon/app/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace neuraldbg {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::string& error_path,
                           const std::vector<std::string>& environment) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, error_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const std::vector<char*> arguments = Pointers(command), variables = Pointers(environment);
  if (::posix_spawn(&pid_, command[0].c_str(), &actions, nullptr, arguments.data(), variables.data()) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe_ends[1]);
  output_ = pipe_ends[0];
  if (pid_ < 0) std::fprintf(stderr, "cannot start %s\n", command[0].c_str());
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(output_);
}

void ChildProcess::Signal(int number) {
  if (pid_ > 0) ::kill(pid_, number);
}

bool ChildProcess::Running() {
  if (pid_ <= 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  pid_ = -1;
  return false;
}

int ChildProcess::Wait() {
  const auto watchdog = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (Running()) {
    if (std::chrono::steady_clock::now() > watchdog) {
      std::fprintf(stderr, "process %d did not end\n", pid_);
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return code_;
}

std::string ChildProcess::ReadLine() {
  for (;;) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char chunk[4096];
    const ssize_t got = ::read(output_, chunk, sizeof chunk);
    if (got <= 0) return std::exchange(buffer_, {});
    buffer_.append(chunk, static_cast<std::size_t>(got));
  }
}

std::string ChildProcess::ReadAll() {
  char chunk[4096];
  for (ssize_t got = 0; (got = ::read(output_, chunk, sizeof chunk)) > 0;) {
    buffer_.append(chunk, static_cast<std::size_t>(got));
  }
  return std::exchange(buffer_, {});
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace neuraldbg
