// How often the random-kill suites kill, and where their kills fell. Random kills show something about an instant only
// if some of them hit it: a suite goes on for up to four times its rounds until every window was hit, and one that
// never was fails it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace neuraldbg::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

// `usual` in every test run, `all` under `./run test --all`, a tenth of the usual under a sanitizer, which is after
// races and bad accesses and not after rare instants.
inline int Rounds(int usual, int all) {
  if (kSanitized) return usual / 20;
  const char* everything = std::getenv("NEURALDBG_TEST_ALL");
  return everything != nullptr && std::string(everything) == "1" ? all : usual;
}

class KillWindows {
 public:
  KillWindows(std::string suite, int rounds, std::vector<std::string> names)
      : suite_(std::move(suite)), rounds_(rounds), names_(std::move(names)), hits_(names_.size()) {}

  bool Wanted(int round) const {
    const bool all_hit = std::find(hits_.begin(), hits_.end(), 0u) == hits_.end();
    return round < rounds_ || (!kSanitized && !all_hit && round < 4 * rounds_);
  }

  template <typename Window>
  void Hit(Window window) {
    ++hits_.at(static_cast<std::size_t>(window));
  }

  void Report(int done) const {
    std::string line;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      line += (i == 0 ? "" : ", ") + names_[i] + " " + std::to_string(hits_[i]);
      if (!kSanitized) {
        EXPECT_GT(hits_[i], 0u) << suite_ << ": no kill fell into the window '" << names_[i] << "'";
      }
    }
    std::printf("%s: %d rounds; hits: %s\n", suite_.c_str(), done, line.c_str());
  }

 private:
  std::string suite_;
  int rounds_;
  std::vector<std::string> names_;
  std::vector<std::uint64_t> hits_;
};

}  // namespace neuraldbg::testing
