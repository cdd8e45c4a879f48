// Directories of one test, and the real daemon and producers in them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/store/store.h"
#include "tests/daemon/app/child_process.h"

namespace neuraldbg {

class DaemonFixture : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string shm() const { return root_ + "/shm"; }
  std::string data() const { return root_ + "/data"; }
  std::string http() const;  // HOST:PORT of the daemon that serves now, from its endpoint file; empty: none
  std::string socket() const { return root_ + "/d.sock"; }
  std::string errors() const { return ReadFile(root_ + "/stderr"); }

  // The daemon with the directories of this test, an HTTP port that is free, and `more` arguments (later ones win where
  // a flag takes one value).
  std::unique_ptr<ChildProcess> StartDaemon(const std::vector<std::string>& more = {}, bool own_port = true);
  // Exactly these arguments; returns the exit code, and in `said` what went to standard error.
  int RunDaemon(const std::vector<std::string>& arguments, std::string& said);
  std::unique_ptr<ChildProcess> StartProducer(const std::vector<std::string>& arguments);

  // Returns once `condition` holds; fails the test after a minute.
  void Await(const std::string& what, const std::function<bool()>& condition);
  void AwaitServing();
  void AwaitRunState(const std::string& run, RunState state);
  std::unique_ptr<StoreReader> OpenStore();

 private:
  std::vector<std::string> Environment() const;
  std::string root_;
};

}  // namespace neuraldbg
