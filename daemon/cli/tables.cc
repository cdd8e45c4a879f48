#include "daemon/cli/tables.h"

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "daemon/service/report.h"

namespace neuraldbg {
namespace {

std::string PhaseName(v1::TrainingStep::Phase phase) { return v1::TrainingStep::Phase_Name(phase); }

std::string LocalTime(const google::protobuf::Timestamp& timestamp) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(timestamp.seconds()), absl::LocalTimeZone());
}

// A change that no statistic tells, such as the end of a process, has no value: an empty cell is not a zero.
bool HasValue(const v1::Event& event) { return !event.expected().statistic().empty(); }

std::string TransitionText(const v1::Event& event) {
  return absl::StrCat(event.transition().from(), " -> ", event.transition().to());
}

std::vector<std::string> EventCells(const v1::Event& event) {
  return {absl::StrCat(event.id()),
          absl::StrCat(event.step()),
          absl::StrCat(event.rank()),
          event.site(),
          TransitionText(event),
          event.expected().statistic(),
          HasValue(event) ? NumberText(event.value()) : "",
          HasValue(event) ? RangeText(event.expected()) : "",
          v1::Event::Severity_Name(event.severity())};
}

}  // namespace

std::string FormatNumber(double value) {
  if (std::isfinite(value) && value == std::floor(value) && std::abs(value) < 1e12) {
    return absl::StrFormat("%.0f", value);
  }
  return absl::StrFormat("%.5g", value);
}

std::string CountedRuns(const v1::ListRunsResponse& response) {
  return absl::StrCat(response.runs_size(), response.runs_size() == 1 ? " run" : " runs",
                      response.has_next_page_token() ? " or more" : "");
}

std::string WarningText(const v1::DaemonWarning& warning) {
  return absl::StrCat(warning.text(), " ", warning.remedy());
}

Table ToTable(const v1::ListRunsResponse& response) {
  Table table({{"RUN"}, {"STATE"}, {"VERDICT"}, {"STEPS", true}, {"RANKS", true}, {"STARTED"}, {"FRAMEWORK"}});
  for (const v1::Run& run : response.runs()) {
    table.AddRow({run.run(), v1::Run::State_Name(run.state()), v1::Diagnosis::Verdict_Name(run.verdict()),
                  absl::StrCat(run.steps_seen()), absl::StrCat(run.world_size()), LocalTime(run.created()),
                  run.framework()});
  }
  return table;
}

Table ToTable(const v1::ListRanksResponse& response) {
  Table table({{"RANK", true},
               {"START", true},
               {"HOST"},
               {"PID", true},
               {"STATE"},
               {"LAST STEP", true},
               {"LAST SITE"},
               {"PRODUCED", true},
               {"RECEIVED", true},
               {"DROPPED", true}});
  for (const v1::Rank& rank : response.ranks()) {
    table.AddRow({absl::StrCat(rank.rank()), absl::StrCat(rank.incarnation()), rank.host(), absl::StrCat(rank.pid()),
                  v1::Rank::State_Name(rank.state()), absl::StrCat(rank.last_step()), rank.last_site(),
                  FormatNumber(rank.records_produced()), FormatNumber(rank.records_received()),
                  FormatNumber(rank.records_dropped())});
  }
  return table;
}

Table ToTable(const v1::ListSitesResponse& response) {
  Table table(
      {{"SITE"}, {"MODULE"}, {"PHASE"}, {"KIND"}, {"RECORDS", true}, {"LAST STEP", true}, {"STATE"}, {"LEVEL"}});
  for (const v1::Site& site : response.sites()) {
    table.AddRow({site.site(), site.module(), PhaseName(site.phase()), v1::Site::Kind_Name(site.kind()),
                  FormatNumber(site.records()), absl::StrCat(site.last_step()), v1::Site::State_Name(site.state()),
                  site.level() == v1::Site::NO_LEVEL ? "-" : v1::Site::Level_Name(site.level())});
  }
  return table;
}

Table ToTable(const v1::QuerySeriesResponse& response) {
  Table table({{"SITE"}, {"RANK", true}, {"STATISTIC"}, {"STEP", true}, {"VALUE", true}});
  for (const v1::Series& series : response.series()) {
    for (const v1::Point& point : series.points()) {
      table.AddRow({series.site(), absl::StrCat(series.rank()), series.statistic(), absl::StrCat(point.step()),
                    FormatNumber(static_cast<double>(point.value()))});
    }
  }
  return table;
}

Table ToTable(const v1::CausalGraph& graph) {
  std::map<std::string, const v1::CausalNode*> nodes;
  for (const v1::CausalNode& node : graph.nodes()) nodes[node.site()] = &node;
  const auto phase = [&](const std::string& site) {
    const auto found = nodes.find(site);
    return found == nodes.end() ? std::string() : PhaseName(found->second->phase());
  };
  Table table({{"FROM"}, {"PHASE"}, {"TO"}, {"PHASE"}, {"WHEN"}});
  for (const v1::CausalEdge& edge : graph.edges()) {
    table.AddRow(
        {edge.from(), phase(edge.from()), edge.to(), phase(edge.to()), edge.next_step() ? "next step" : "same step"});
  }
  return table;
}

Table EventTable() {
  return Table({{"ID", true},
                {"STEP", true},
                {"RANK", true},
                {"SITE"},
                {"TRANSITION"},
                {"STATISTIC"},
                {"VALUE", true},
                {"EXPECTED", true},
                {"SEVERITY"}});
}

void AddEvent(const v1::Event& event, Table& table) { table.AddRow(EventCells(event)); }

std::string EventLine(const v1::Event& event) {
  std::string text = absl::StrFormat("step %-7d rank %-3d %-8s", event.step(), event.rank(),
                                     v1::Event::Severity_Name(event.severity()));
  if (!event.site().empty()) absl::StrAppend(&text, " ", event.site(), " ");
  absl::StrAppend(&text, " ", TransitionText(event));
  if (HasValue(event)) absl::StrAppend(&text, "  ", MeasurementText(event.value(), event.expected()));
  return text + "\n";
}

std::string ToMermaid(const v1::CausalGraph& graph) {
  std::map<std::string, std::string> ids;
  std::string text = "flowchart TD\n";
  for (const v1::CausalNode& node : graph.nodes()) {
    const std::string id = absl::StrCat("n", ids.size());
    ids[node.site()] = id;
    // Mermaid reads entities inside quotes.
    absl::StrAppend(&text, "  ", id, "[\"", absl::StrReplaceAll(node.site(), {{"\"", "#quot;"}, {"&", "#amp;"}}),
                    "\"]\n");
  }
  for (const v1::CausalEdge& edge : graph.edges()) {
    absl::StrAppend(&text, "  ", ids[edge.from()], edge.next_step() ? " -.-> " : " --> ", ids[edge.to()], "\n");
  }
  return text;
}

}  // namespace neuraldbg
