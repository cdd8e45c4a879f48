// A whole run out of its rows, as a RunSink takes it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/store/run_sink.h"
#include "daemon/store/sqlite_connection.h"
#include "daemon/store/store_queries.h"

namespace neuraldbg::store {

// In one read transaction, so that all is of one moment. Memory: a block of each rank, and a page of the rest.
absl::Status ReadRun(SqliteConnection& database, StoreQueries& queries, std::uint64_t run_id, RunSink& sink);

}  // namespace neuraldbg::store
