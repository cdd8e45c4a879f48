#include "daemon/ingest/topology_builder.h"

#include <gtest/gtest.h>

namespace neuraldbg {
namespace {

SiteEntry Site(std::uint32_t id, std::string name) {
  SiteEntry site;
  site.id = id;
  site.name = std::move(name);
  return site;
}

TEST(TopologyBuilderTest, Sites_FillTheirPlaceAndMayBeAnnouncedAgain) {
  Topology topology;
  EXPECT_TRUE(ApplyEntry(Site(2, "c"), 4, topology));
  ASSERT_EQ(topology.sites.size(), 3u);
  EXPECT_EQ(topology.sites[0].level, ObservationLevel::kNotObserved);
  EXPECT_TRUE(ApplyEntry(Site(0, "a"), 4, topology));
  EXPECT_TRUE(ApplyEntry(Site(0, "a2"), 4, topology));
  EXPECT_EQ(topology.sites[0].name, "a2");
  EXPECT_EQ(topology.sites[0].level, ObservationLevel::kFused);
}

TEST(TopologyBuilderTest, EntriesOutOfRange_ChangeNothing) {
  Topology topology;
  EXPECT_FALSE(ApplyEntry(Site(4, "x"), 4, topology));
  SiteEntry twin = Site(0, "x");
  twin.twin = 9;
  EXPECT_FALSE(ApplyEntry(twin, 4, topology));
  EXPECT_FALSE(ApplyEntry(EdgeEntry{1, 4}, 4, topology));
  EXPECT_FALSE(ApplyEntry(SinkEntry{kNoSite}, 4, topology));
  EXPECT_FALSE(ApplyEntry(ParameterInitEntry{.site = 7}, 4, topology));
  EXPECT_TRUE(topology.sites.empty() && topology.edges.empty() && topology.sinks.empty());
}

TEST(TopologyBuilderTest, FirstRunEntry_DecidesTheIdentity) {
  Topology topology;
  RunEntry run;
  run.run_name = "gpt";
  run.launch = "l1";
  EXPECT_TRUE(ApplyEntry(run, 4, topology));
  run.run_name = "other";
  run.launch = "l2";
  run.planned_sites = 7;
  EXPECT_TRUE(ApplyEntry(run, 4, topology));
  EXPECT_EQ(topology.run.run_name, "gpt");
  EXPECT_EQ(topology.run.launch, "l1");
  EXPECT_EQ(topology.run.planned_sites, 7u);
}

TEST(TopologyBuilderTest, Strings_AreMadePrintable) {
  SiteEntry site = Site(0, "a\x1b[31mb\xff");
  site.owner = std::string(1000, 'x');
  const auto clean = std::get<SiteEntry>(Sanitized(site));
  EXPECT_EQ(clean.name, "a\\x1b[31mb\xef\xbf\xbd");
  EXPECT_EQ(clean.owner.size(), kMaxStringBytes);
}

}  // namespace
}  // namespace neuraldbg
