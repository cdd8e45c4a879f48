#include "daemon/service/report.h"

#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/service/query.h"
#include "google/protobuf/util/json_util.h"

namespace neuraldbg {
namespace {

constexpr std::size_t kLabelWidth = 9;
// What a terminal shows at a glance; the JSON report has everything.
constexpr int kLinksShown = 6;
constexpr int kEvidenceShown = 3;
constexpr int kLinesOfASection = 5;

// (Debian's abseil has a string_view of its own, which its string functions insist on.)
class TextReport {
 public:
  explicit TextReport(const ReportStyle& style) : style_(style) {}

  // Appends `text` behind `label`, wrapped at the width; following lines are indented below the text.
  void Line(absl::string_view label, absl::string_view text, absl::string_view color = "") {
    std::string indent(kLabelWidth, ' ');
    std::string line = Painted(absl::StrFormat("%-*s", static_cast<int>(kLabelWidth), std::string(label)), color);
    std::size_t column = kLabelWidth;
    bool first = true;
    for (const absl::string_view word : absl::StrSplit(text, ' ')) {
      if (!first && column + 1 + word.size() > style_.width) {
        absl::StrAppend(&text_, line, "\n");
        line = indent;
        column = kLabelWidth;
        first = true;
      }
      absl::StrAppend(&line, first ? "" : " ", word);
      column += word.size() + (first ? 0 : 1);
      first = false;
    }
    absl::StrAppend(&text_, line, "\n");
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string Painted(std::string text, absl::string_view color) const {
    if (!style_.color || color.empty()) return text;
    return absl::StrCat("\x1b[", color, "m", text, "\x1b[0m");
  }

  ReportStyle style_;
  std::string text_;
};

std::string RankText(std::int32_t rank) { return rank < 0 ? "all ranks" : absl::StrCat("rank ", rank); }

std::string Place(const v1::Hypothesis& hypothesis) {
  std::string where = hypothesis.module().empty() ? hypothesis.site() : hypothesis.module();
  // Where a process was last seen is no place of a fault; the evidence tells it.
  if (hypothesis.kind() == v1::Hypothesis::RANK_DIED) where.clear();
  return absl::StrCat(v1::Hypothesis::Kind_Name(hypothesis.kind()), where.empty() ? "" : " in ", where, ", ",
                      RankText(hypothesis.rank()), ", step ", hypothesis.step());
}

std::string EvidenceText(const v1::Evidence& evidence) {
  const v1::Expectation& expected = evidence.expected();
  const bool measured = !expected.statistic().empty() || expected.high() != expected.low();
  if (!measured) return evidence.note();
  std::string text = absl::StrCat(evidence.site(), evidence.site().empty() ? "at step " : " at step ", evidence.step(),
                                  ": ", MeasurementText(evidence.observed(), expected));
  if (!evidence.note().empty()) absl::StrAppend(&text, ". ", evidence.note());
  return text;
}

std::string LinkText(const v1::ChainLink& link, bool first) {
  std::string text = absl::StrCat(first ? "" : "-> ", link.site(), link.site().empty() ? "(" : " (",
                                  v1::TrainingStep::Phase_Name(link.phase()), ", step ", link.step());
  if (link.share() > 0) absl::StrAppend(&text, absl::StrFormat(", %.0f %%", 100 * link.share()));
  absl::StrAppend(&text, ")");
  if (!link.note().empty()) absl::StrAppend(&text, " ", link.note());
  return text;
}

void AppendHypothesis(const v1::Hypothesis& hypothesis, TextReport& report) {
  report.Line("Why", hypothesis.summary());
  for (int i = 0; i < hypothesis.evidence_size() && i < kEvidenceShown; ++i) {
    report.Line("", EvidenceText(hypothesis.evidence(i)));
  }
  for (int i = 0; i < hypothesis.chain_size() && i < kLinksShown; ++i) {
    report.Line(i == 0 ? "Chain" : "", LinkText(hypothesis.chain(i), i == 0));
  }
  for (int i = 0; i < hypothesis.equivalents_size() && i < kLinesOfASection; ++i) {
    report.Line(i == 0 ? "Or" : "", hypothesis.equivalents(i));
  }
  if (!hypothesis.remedy().empty()) report.Line("Next", hypothesis.remedy());
}

std::string VerdictText(const v1::Diagnosis& diagnosis) {
  std::string text = absl::StrCat(v1::Diagnosis::Verdict_Name(diagnosis.verdict()), "  run ", diagnosis.run(), ", ",
                                  diagnosis.steps_seen(), " steps, ", diagnosis.ranks_seen_size(),
                                  diagnosis.ranks_seen_size() == 1 ? " rank" : " ranks");
  if (!diagnosis.warm()) absl::StrAppend(&text, ", baselines not ready");
  return text;
}

absl::string_view VerdictColor(v1::Diagnosis::Verdict verdict) {
  switch (verdict) {
    case v1::Diagnosis::HEALTHY:
      return "1;32";
    case v1::Diagnosis::FAULT:
      return "1;31";
    default:
      return "1;33";
  }
}

// The best hypothesis of each incident in full; the others of the incident are alternatives and stay in the JSON.
void AppendIncidents(const v1::Diagnosis& diagnosis, TextReport& report) {
  for (const v1::Hypothesis& hypothesis : diagnosis.hypotheses()) {
    if (!hypothesis.in_summary()) continue;
    report.Line("Cause", absl::StrCat(Place(hypothesis),
                                      absl::StrFormat(" (confidence %.0f %%)", 100 * hypothesis.confidence())));
    AppendHypothesis(hypothesis, report);
  }
}

// Where no cause is named.
std::string VerdictAdvice(const v1::Diagnosis& diagnosis) {
  switch (diagnosis.verdict()) {
    case v1::Diagnosis::HEALTHY:
      if (diagnosis.has_step_consumed() && !diagnosis.step_consumed()) {
        return "See `neuraldbgctl ranks` for whether the run goes on, and ask again.";
      }
      if (!diagnosis.warm()) {
        return "Let the run go on: so far the exact rules alone have spoken. What is usual in this run is not known "
               "yet, "
               "so a change of it would not be seen.";
      }
      return "Nothing to do.";
    case v1::Diagnosis::INCOMPLETE_DATA:
      return "Let the run go on, or see `neuraldbgctl ranks` for lost records and `neuraldbgctl sites` for silent "
             "sites.";
    case v1::Diagnosis::UNSURE:
      return "See `neuraldbgctl events` for what changed; no recorded place explains it.";
    default:
      return "";
  }
}

std::string FileStem(const std::string& name) {
  std::string stem;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       absl::string_view("._#-").find(c) != absl::string_view::npos;
    stem.push_back(plain ? c : '_');
  }
  return stem.empty() || stem.front() == '.' ? "_" + stem : stem;
}

absl::Status WriteFileAtomically(const std::filesystem::path& path, const std::string& contents) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << contents;
    if (!file.flush()) return absl::UnavailableError(absl::StrCat("Cannot write ", temporary.string(), "."));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return absl::UnavailableError(absl::StrCat("Cannot write ", path.string(), ": ", error.message(), "."));
  return absl::OkStatus();
}

}  // namespace

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "infinity" : "-infinity";
  return absl::StrFormat("%.4g", value);
}

std::string RangeText(const v1::Expectation& expected) {
  if (expected.low() == expected.high()) return NumberText(expected.low());
  if (std::isinf(expected.high())) return absl::StrCat("at least ", NumberText(expected.low()));
  return absl::StrCat(NumberText(expected.low()), " to ", NumberText(expected.high()));
}

std::string MeasurementText(double value, const v1::Expectation& expected) {
  return absl::StrCat(expected.statistic(), expected.statistic().empty() ? "" : " ", NumberText(value), ", expected ",
                      RangeText(expected));
}

std::string RenderReport(const v1::Diagnosis& diagnosis, const ReportStyle& style) {
  TextReport report(style);
  report.Line("Verdict", VerdictText(diagnosis), VerdictColor(diagnosis.verdict()));
  AppendIncidents(diagnosis, report);
  if (diagnosis.has_step_consumed() && !diagnosis.step_consumed()) {
    report.Line("Missing", "The step that was waited for did not arrive: this does not cover it.");
  }
  if (diagnosis.hypotheses().empty()) report.Line("Next", VerdictAdvice(diagnosis));
  for (int i = 0; i < diagnosis.notices_size() && i < kLinesOfASection; ++i) {
    const v1::Notice& notice = diagnosis.notices(i);
    report.Line("Notice", absl::StrCat(v1::Hypothesis::Kind_Name(notice.kind()), " at step ", notice.step(), ", ",
                                       RankText(notice.rank()), ": ", notice.text()));
  }
  for (int i = 0; i < diagnosis.blind_spots_size() && i < kLinesOfASection; ++i) {
    const v1::BlindSpot& spot = diagnosis.blind_spots(i);
    report.Line("Blind", absl::StrCat(spot.site(), spot.site().empty() ? "" : ", ", RankText(spot.rank()), ", step ",
                                      spot.step(), ": ", spot.text()));
  }
  if (diagnosis.blind_spots_size() > kLinesOfASection) {
    report.Line("", absl::StrCat("and ", diagnosis.blind_spots_size() - kLinesOfASection, " more."));
  }
  return report.Take();
}

std::string ToJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.always_print_primitive_fields = true;  // rank 0 and step 0 are values, not absence
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  // Fails only for strings that are not UTF-8, and those were escaped at ingest.
  return status.ok() ? json : absl::StrCat("{\"error\":\"", std::string(status.message()), "\"}");
}

absl::Status WriteReport(StoreReader& reader, const StoredRun& run, const std::string& directory) {
  const absl::StatusOr<v1::Diagnosis> diagnosis = DiagnosisOf(reader, run);
  if (!diagnosis.ok()) return diagnosis.status();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat("Cannot create ", directory, ": ", error.message(), "."));
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  const std::filesystem::path stem = std::filesystem::path(directory) / FileStem(run.display_name);
  const absl::Status written = WriteFileAtomically(stem.string() + ".json", ToJson(*diagnosis));
  return written.ok() ? WriteFileAtomically(stem.string() + ".txt", RenderReport(*diagnosis)) : written;
}

}  // namespace neuraldbg
