// Verbs that print a list: runs, ranks, sites, events, series, and the graph.
#include <iostream>

#include "daemon/cli/tables.h"
#include "daemon/cli/verbs.h"
#include "daemon/service/report.h"

namespace neuraldbg {
namespace {

// Asks for page after page and merges them, so that the printed message is the whole list and has no token.
template <typename Request, typename Response>
absl::StatusOr<Response> AllPages(Source& source, absl::StatusOr<Response> (Source::*call)(const Request&),
                                  Request request) {
  Response all;
  for (;;) {
    absl::StatusOr<Response> page = (source.*call)(request);
    if (!page.ok()) return page.status();
    const bool more = page->has_next_page_token();
    request.set_page_token(page->next_page_token());
    page->clear_next_page_token();
    all.MergeFrom(*page);
    if (!more) return all;
  }
}

template <typename Response>
ExitCode Print(const absl::StatusOr<Response>& response, Output& output) {
  if (!response.ok()) return Fail(response.status());
  if (output.format() == OutputFormat::kTable) {
    output.WriteTable(ToTable(*response));
  } else {
    output.WriteMessage(*response, true);
  }
  return kExitSuccess;
}

// A stream of events in the format that was asked for. JSON is one object, opened at the first byte and closed when the
// stream ends, so that even a stream is what `-o json` promises.
class EventPrinter {
 public:
  explicit EventPrinter(Output& output) : output_(output) {
    if (output_.format() == OutputFormat::kJson) output_.Write("{\"events\":[");
  }
  void Print(const v1::Event& event) {
    if (output_.format() == OutputFormat::kTable) return output_.Write(EventLine(event));
    if (output_.format() == OutputFormat::kJsonl) return output_.WriteMessage(event, false);
    output_.Write((printed_++ == 0 ? "\n" : ",\n") + ToJson(event, false));
  }
  void Close() {
    if (output_.format() == OutputFormat::kJson) output_.Write("]}\n");
  }

 private:
  Output& output_;
  std::size_t printed_ = 0;
};

// Prints events with a larger id than `after_id`, then live ones until the run ends.
ExitCode Follow(const Arguments& arguments, std::uint32_t after_id, Source& source, Output& output) {
  v1::WatchEventsRequest request;
  request.set_run(arguments.run);
  request.set_after_id(after_id);
  EventPrinter printer(output);
  const absl::Status status = source.WatchEvents(request, [&](const v1::Event& event) {
    printer.Print(event);
    return output.Finish().ok();
  });
  printer.Close();
  return status.ok() ? kExitSuccess : Fail(status);
}

}  // namespace

ExitCode RunRuns(const Arguments&, Source& source, Output& output) {
  const absl::StatusOr<v1::ListRunsResponse> runs = AllPages(source, &Source::ListRuns, v1::ListRunsRequest());
  const ExitCode code = Print(runs, output);
  if (!runs.ok()) return code;
  for (const v1::DaemonWarning& warning : runs->warnings())
    std::cerr << "neuraldbgctl: " << WarningText(warning) << "\n";
  return code;
}

ExitCode RunRanks(const Arguments& arguments, Source& source, Output& output) {
  v1::ListRanksRequest request;
  request.set_run(arguments.run);
  return Print(AllPages(source, &Source::ListRanks, request), output);
}

ExitCode RunSites(const Arguments& arguments, Source& source, Output& output) {
  v1::ListSitesRequest request;
  request.set_run(arguments.run);
  if (arguments.rank) request.set_rank(*arguments.rank);
  return Print(AllPages(source, &Source::ListSites, request), output);
}

ExitCode RunSeries(const Arguments& arguments, Source& source, Output& output) {
  v1::QuerySeriesRequest request;
  request.set_run(arguments.run);
  for (const std::string& site : arguments.sites) request.add_sites(site);
  request.set_statistic(arguments.statistic);
  if (arguments.rank) request.set_rank(*arguments.rank);
  if (arguments.from_step) request.set_from_step(*arguments.from_step);
  if (arguments.to_step) request.set_to_step(*arguments.to_step);
  request.set_max_points(arguments.max_points);
  return Print(AllPages(source, &Source::QuerySeries, request), output);
}

ExitCode RunEvents(const Arguments& arguments, Source& source, Output& output) {
  if (arguments.follow && source.live()) return Follow(arguments, 0, source, output);
  if (arguments.follow) std::cerr << "neuraldbgctl: without a daemon there is nothing to follow\n";
  v1::ListEventsRequest request;
  request.set_run(arguments.run);
  const absl::StatusOr<v1::ListEventsResponse> events = AllPages(source, &Source::ListEvents, request);
  if (!events.ok() || output.format() != OutputFormat::kTable) {
    if (!events.ok()) return Fail(events.status());
    output.WriteMessage(*events, true);
    return kExitSuccess;
  }
  Table table = EventTable();
  for (const v1::Event& event : events->events()) AddEvent(event, table);
  output.WriteTable(table);
  return kExitSuccess;
}

ExitCode RunTail(const Arguments& arguments, Source& source, Output& output) {
  constexpr std::uint32_t kEventsBefore = 10;  // as tail(1)
  v1::ListEventsRequest request;
  request.set_run(arguments.run);
  const absl::StatusOr<v1::ListEventsResponse> events = AllPages(source, &Source::ListEvents, request);
  if (!events.ok()) return Fail(events.status());
  const std::uint32_t last = events->events().empty() ? 0 : events->events().rbegin()->id();
  return Follow(arguments, last > kEventsBefore ? last - kEventsBefore : 0, source, output);
}

ExitCode RunGraph(const Arguments& arguments, Source& source, Output& output) {
  v1::GetCausalGraphRequest request;
  request.set_run(arguments.run);
  if (arguments.rank) request.set_rank(*arguments.rank);
  const absl::StatusOr<v1::GetCausalGraphResponse> response = source.GetCausalGraph(request);
  if (!response.ok()) return Fail(response.status());
  if (arguments.mermaid) {
    output.Write(ToMermaid(response->graph()));
  } else if (output.format() == OutputFormat::kTable) {
    output.WriteTable(ToTable(response->graph()));
  } else {
    output.WriteMessage(response->graph(), false);
  }
  return kExitSuccess;
}

}  // namespace neuraldbg
