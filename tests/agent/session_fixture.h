// A session under test and what a reader finds in its segment.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "agent/src/capi.h"
#include "agent/src/rank_session.h"
#include "agent/src/session_table.h"
#include "shared/ring_reader.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg::testing {

inline std::int32_t CreateIn(const std::string& directory, const char* run = "run", std::uint32_t lanes = 0,
                             std::uint32_t capacity = 0) {
  ndbg_session_options options{};
  options.shm_directory = directory.c_str();
  options.run_name = run;
  options.launch = "launch";
  options.host = "host";
  options.framework = "none";
  options.world_size = 1;
  options.lanes = lanes;
  options.lane_capacity = capacity;
  char error[256] = "";
  const std::int32_t session = ndbg_session_create(&options, error, sizeof error);
  EXPECT_GE(session, 0) << error;
  return session;
}

inline ndbg_site Site(const char* name, SiteRole role = SiteRole::kOutput, Phase phase = Phase::kForward) {
  ndbg_site site{};
  site.name = name;
  site.module = name;
  site.module_kind = "Linear";
  site.owner = "";
  site.role = static_cast<std::uint32_t>(role);
  site.phase = static_cast<std::uint32_t>(phase);
  site.dtype = static_cast<std::uint32_t>(DType::kFloat32);
  site.twin = site.covered_by = site.optimizer_group = kNoSite;
  return site;
}

inline void Observe(std::int32_t session, std::uint32_t site, const std::vector<float>& values,
                    std::uint16_t flags = 0) {
  const auto size = static_cast<std::int64_t>(values.size());
  const std::int64_t stride = 1;
  const SessionUse use(session);
  if (!use || !use->armed()) return;
  const TensorView view{values.data(), DType::kFloat32, 1, values.size(), &size, &stride};
  use->ObserveTensor(site, view, RecordKind::kTensor, flags);
}

struct Contents {
  std::vector<Record> records;
  std::vector<ManifestEntry> entries;
  std::uint64_t dropped = 0;
  OwnerState owner = OwnerState::kDead;
  std::uint64_t heartbeat = 0;
};

inline Contents ReadBack(const std::string& path) {
  Contents contents;
  auto reader = SegmentReader::Attach(path);
  EXPECT_TRUE(reader.ok()) << path << ": " << reader.error().message;
  if (!reader.ok()) return contents;
  SegmentReader& segment = *reader.value();
  EXPECT_EQ(segment.manifest().Poll([&](const ManifestEntry& entry) { contents.entries.push_back(entry); }).code,
            Errc::kOk);
  while (segment.Drain([&](std::uint32_t, std::span<const Record> records) {
    contents.records.insert(contents.records.end(), records.begin(), records.end());
  }) != 0) {
  }
  contents.dropped = segment.dropped_total();
  contents.owner = segment.owner_state();
  contents.heartbeat = segment.heartbeat_ns();
  return contents;
}

}  // namespace neuraldbg::testing
