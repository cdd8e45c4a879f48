// A snapshot that is read as what it is not gives wrong answers without any error. Its version says what the bytes
// mean, so it must be raised whenever they come to mean something else; this test notices that they do.
//
// When it fails: raise kSnapshotVersion in daemon/infer/run_engine.cc by one and add the row that the failure prints to
// kLayouts. A stored run is then replayed instead of restored, which is slower and never wrong. Rows are not edited.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/infer/rank_inference.h"
#include "tests/daemon/infer/engine_driver.h"

namespace neuraldbg::testing {
namespace {

struct Layout {
  std::uint32_t version;
  std::uint64_t digest;
};
constexpr std::array kLayouts{Layout{1, 0x248e8e60adc8f7b3}, Layout{2, 0xc23369cde47d1a9f},
                              Layout{3, 0x8b73600c673b5bd0}, Layout{4, 0xccd7756496630d0c},
                              Layout{5, 0xf2ded523b3f3bc1b}, Layout{6, 0x7c012d333eb2f8bd}};

class Digest {
 public:
  void Add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;  // FNV-1a
};

// An archive that keeps how many bytes every field takes and not what is in them, so that a threshold may change what a
// detector remembers without this test noticing.
class ShapeArchive {
 public:
  static constexpr bool kReading = false;
  explicit ShapeArchive(Digest& digest) : digest_(digest) {}
  void Raw(const void* /*data*/, std::size_t bytes) { digest_.Add(std::to_string(bytes) + ","); }
  std::uint64_t Count(std::uint64_t count, std::size_t /*element_bytes*/) {
    digest_.Add(std::to_string(count) + "x");
    return count;
  }
  bool ok() const { return true; }

 private:
  Digest& digest_;
};

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The arguments of every call that hands fields to an archive, without white space.
std::vector<std::string> FieldLists(const std::string& source) {
  std::vector<std::string> lists;
  for (const std::string_view call : {"Fields(archive,", "Field(archive,", "VisitList(archive,"}) {
    for (std::size_t at = source.find(call); at != std::string::npos; at = source.find(call, at + 1)) {
      std::string list = source.substr(at, source.find(';', at) - at);
      std::erase_if(list, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
      lists.push_back(std::move(list));
    }
  }
  return lists;
}

Digest DigestOfLayout() {
  Digest digest;
  ShapeArchive shape(digest);
  RankInference rank;
  rank.SetTopology(SyntheticRun().topology);
  rank.Visit(shape);
  Incident incident;
  incident.causes.resize(1);
  incident.causes.front().chain.resize(1);
  incident.Visit(shape);
  std::vector<std::string> lists;
  for (const char* room : {"daemon/detect", "daemon/infer", "shared/series"}) {
    for (const auto& entry : std::filesystem::directory_iterator(NEURALDBG_SOURCE_DIR "/" + std::string(room))) {
      if (entry.path().extension() == ".h" || entry.path().extension() == ".cc") {
        std::ranges::copy(FieldLists(Read(entry.path())), std::back_inserter(lists));
      }
    }
  }
  EXPECT_GT(lists.size(), 30U) << "the sources are not where they were";
  std::ranges::sort(lists);  // code may move between files
  for (const std::string& list : lists) digest.Add(list + "\n");
  return digest;
}

std::uint32_t VersionOfSnapshots() {
  const std::vector<std::byte> snapshot = RunEngine().Snapshot();
  std::uint32_t version = 0;
  std::memcpy(&version, snapshot.data() + sizeof(std::uint64_t), sizeof version);
  return version;
}

TEST(SnapshotLayout, ChangeRaisesTheVersion) {
  const std::uint32_t version = VersionOfSnapshots();
  const std::uint64_t digest = DigestOfLayout().value();
  const Layout& newest = kLayouts.back();
  if (digest != newest.digest) {
    ADD_FAILURE() << "The serialised state of detectors or inference has changed since version " << newest.version
                  << ". Raise kSnapshotVersion in daemon/infer/run_engine.cc to " << newest.version + 1
                  << " and add this row to kLayouts: Layout{" << newest.version + 1 << ", 0x" << std::hex << digest
                  << "}";
  }
  EXPECT_EQ(version, newest.version) << "every version has its row in kLayouts";
  for (std::size_t i = 1; i < kLayouts.size(); ++i) {
    EXPECT_EQ(kLayouts[i].version, kLayouts[i - 1].version + 1);
    EXPECT_NE(kLayouts[i].digest, kLayouts[i - 1].digest);
  }
}

}  // namespace
}  // namespace neuraldbg::testing
