// Messages of neuraldbg.v1 as tables for people.
#pragma once

#include <string>

#include "daemon/cli/output.h"
#include "neuraldbg/v1/diagnosis.pb.h"
#include "neuraldbg/v1/event.pb.h"
#include "neuraldbg/v1/run_service.pb.h"
#include "neuraldbg/v1/series_service.pb.h"

namespace neuraldbg {

Table ToTable(const v1::ListRunsResponse& response);
Table ToTable(const v1::ListRanksResponse& response);
Table ToTable(const v1::ListSitesResponse& response);
Table ToTable(const v1::QuerySeriesResponse& response);
Table ToTable(const v1::CausalGraph& graph);

Table EventTable();
void AddEvent(const v1::Event& event, Table& table);
// One event in one line of a stream, where a table cannot know its widths.
std::string EventLine(const v1::Event& event);

// A Mermaid flowchart of the observed nodes.
std::string ToMermaid(const v1::CausalGraph& graph);

std::string FormatNumber(double value);
// "7 runs"; "100 runs or more" where the page is not the last.
std::string CountedRuns(const v1::ListRunsResponse& response);
// What is wrong with the daemon, and what to do.
std::string WarningText(const v1::DaemonWarning& warning);

}  // namespace neuraldbg
