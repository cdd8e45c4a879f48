#include "tests/daemon/app/daemon_fixture.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace neuraldbg {

void DaemonFixture::SetUp() {
  std::string pattern = "/tmp/ndbg-app.XXXXXX";  // short: it holds a unix socket
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  root_ = pattern;
  std::filesystem::create_directory(shm());
}

void DaemonFixture::TearDown() {
  // A daemon that a sanitizer ended may long have been replaced by the next one.
  for (const char* report : {"Sanitizer", "runtime error:"}) {
    EXPECT_EQ(errors().find(report), std::string::npos) << "a child did what it must not";
  }
  if (HasFailure()) std::fprintf(stderr, "--- standard error of the children:\n%s---\n", errors().c_str());
  std::filesystem::remove_all(root_);
}

std::vector<std::string> DaemonFixture::Environment() const {
  return {"HOME=" + root_, "XDG_RUNTIME_DIR=" + root_, "PATH=/usr/bin:/bin"};
}

std::unique_ptr<ChildProcess> DaemonFixture::StartDaemon(const std::vector<std::string>& more, bool own_port) {
  std::vector<std::string> command = {NEURALDBGD_PATH, "--shm-dir",       shm(), "--data-dir", data(),
                                      "--grpc",        "unix:" + socket()};
  command.insert(command.end(), more.begin(), more.end());
  // A port of its own, because others may run beside it.
  if (own_port && std::find(more.begin(), more.end(), "--http") == more.end()) {
    command.insert(command.end(), {"--http", "127.0.0.1:0"});
  }
  return std::make_unique<ChildProcess>(command, root_ + "/stderr", Environment());
}

int DaemonFixture::RunDaemon(const std::vector<std::string>& arguments, std::string& said) {
  const std::string path = root_ + "/said";
  std::filesystem::remove(path);
  std::vector<std::string> command = {NEURALDBGD_PATH};
  command.insert(command.end(), arguments.begin(), arguments.end());
  ChildProcess daemon(command, path, Environment());
  daemon.ReadAll();
  const int code = daemon.Wait();
  said = ReadFile(path);
  return code;
}

std::unique_ptr<ChildProcess> DaemonFixture::StartProducer(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {PRODUCER_PATH, shm()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return std::make_unique<ChildProcess>(command, root_ + "/stderr", Environment());
}

void DaemonFixture::Await(const std::string& what, const std::function<bool()>& condition) {
  const auto watchdog = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), watchdog) << "waited for " << what;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void DaemonFixture::AwaitServing() {
  Await("the endpoint file", [this] { return std::filesystem::exists(data() + "/endpoint.json"); });
}

std::string DaemonFixture::http() const {
  const std::string endpoint = ReadFile(data() + "/endpoint.json"), key = "\"http\": \"";
  const std::size_t start = endpoint.find(key);
  if (start == std::string::npos) return "";
  return endpoint.substr(start + key.size(), endpoint.find('"', start + key.size()) - start - key.size());
}

std::unique_ptr<StoreReader> DaemonFixture::OpenStore() {
  auto reader = Store::OpenReadOnly(data());
  return reader.ok() ? *std::move(reader) : nullptr;
}

void DaemonFixture::AwaitRunState(const std::string& run, RunState state) {
  Await("the end of " + run, [&] {
    const auto reader = OpenStore();
    if (reader == nullptr) return false;
    const auto stored = reader->FindRun(run);
    return stored.ok() && stored->state == state;
  });
}

}  // namespace neuraldbg
