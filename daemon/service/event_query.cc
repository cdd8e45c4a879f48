#include <vector>

#include "daemon/service/convert.h"
#include "daemon/service/paging.h"
#include "daemon/service/query.h"
#include "daemon/service/run_topology.h"

namespace neuraldbg {

absl::StatusOr<v1::ListEventsResponse> ListEvents(StoreReader& reader, const Caller& caller,
                                                  const v1::ListEventsRequest& request) {
  const absl::StatusOr<std::uint64_t> after_id = ParsePageToken(request.page_token());
  if (!after_id.ok()) return after_id.status();
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  const std::uint32_t page_size = PageSize(request.page_size(), kPageSizeMax);
  // One more than a page tells whether there is another.
  const absl::StatusOr<std::vector<Transition>> found = reader.ListTransitions(run->id, *after_id, page_size + 1);
  if (!found.ok()) return found.status();
  const PageRange page = PageOf(0, page_size, found->size());
  v1::ListEventsResponse response;
  for (std::size_t i = 0; i < page.end; ++i) *response.add_events() = ToProto((*found)[i], *run, *topology);
  if (page.more) response.set_next_page_token(absl::StrCat((*found)[page.end - 1].id));
  return response;
}

}  // namespace neuraldbg
