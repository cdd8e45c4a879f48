// A diagnosis for people and for files: Verdict, Why, Next. Pure functions of the message, so that the CLI, the report
// files and the Python package show the same words.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "daemon/store/store.h"
#include "google/protobuf/message.h"
#include "neuraldbg/v1/diagnosis.pb.h"

namespace neuraldbg {

struct ReportStyle {
  std::size_t width = 100;  // columns; longer sentences wrap
  bool color = false;
};

std::string NumberText(double value);
// "rms 3.2, expected 0.1 to 0.5".
std::string RangeText(const v1::Expectation& expected);
std::string MeasurementText(double value, const v1::Expectation& expected);

std::string RenderReport(const v1::Diagnosis& diagnosis, const ReportStyle& style = {});

// The protobuf JSON mapping with defaults printed, one object; `pretty` adds line breaks and ends with a newline.
std::string ToJson(const google::protobuf::Message& message, bool pretty = true);

// Writes `<directory>/<run>.json` and `.txt` of one stored run, each atomically; creates the directory (0700). File
// names keep only [A-Za-z0-9._#-] of the run's name, since a name from a segment is untrusted.
absl::Status WriteReport(StoreReader& reader, const StoredRun& run, const std::string& directory);

}  // namespace neuraldbg
