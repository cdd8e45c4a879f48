// The layout is a contract between releases: these numbers change only together with kLayoutMajor, and
// docs/ring-format.md says the same as the code.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "shared/ring_layout.h"

namespace neuraldbg::testing {
namespace {

struct Place {
  std::size_t offset = 0, bytes = 0;
  bool operator==(const Place&) const = default;
};
using Fields = std::map<std::string, Place>;

#define FIELD(Type, name)                               \
  {                                                     \
    #name, { offsetof(Type, name), sizeof(Type::name) } \
  }

void AddSegmentTypes(std::map<std::string, Fields>& layout) {
  layout["SegmentHeader"] = {FIELD(SegmentHeader, magic),
                             FIELD(SegmentHeader, major),
                             FIELD(SegmentHeader, minor),
                             FIELD(SegmentHeader, header_bytes),
                             FIELD(SegmentHeader, layout_hash),
                             FIELD(SegmentHeader, record_bytes),
                             FIELD(SegmentHeader, geometry),
                             FIELD(SegmentHeader, offsets),
                             FIELD(SegmentHeader, uuid),
                             FIELD(SegmentHeader, created_realtime_ns),
                             FIELD(SegmentHeader, created_monotonic_ns),
                             FIELD(SegmentHeader, reserved_run),
                             FIELD(SegmentHeader, pid),
                             FIELD(SegmentHeader, rank),
                             FIELD(SegmentHeader, world_size),
                             FIELD(SegmentHeader, incarnation),
                             FIELD(SegmentHeader, reserved),
                             FIELD(SegmentHeader, crc)};
  layout["ProducerState"] = {FIELD(ProducerState, state), FIELD(ProducerState, reserved),
                             FIELD(ProducerState, heartbeat_ns), FIELD(ProducerState, no_lane_drops)};
  layout["ProducerLane"] = {FIELD(ProducerLane, tail), FIELD(ProducerLane, dropped), FIELD(ProducerLane, black_box),
                            FIELD(ProducerLane, owner_tid), FIELD(ProducerLane, claims)};
  layout["ConsumerLane"] = {FIELD(ConsumerLane, head)};
}

void AddRecordTypes(std::map<std::string, Fields>& layout) {
  layout["Record"] = {FIELD(Record, time_ns),    FIELD(Record, step),   FIELD(Record, attempt), FIELD(Record, site),
                      FIELD(Record, tag),        FIELD(Record, kind),   FIELD(Record, phase),   FIELD(Record, dtype),
                      FIELD(Record, reserved),   FIELD(Record, flags),  FIELD(Record, call),    FIELD(Record, validity),
                      FIELD(Record, microbatch), FIELD(Record, payload)};
  layout["TensorPayload"] = {FIELD(TensorPayload, numel),
                             FIELD(TensorPayload, nan_count),
                             FIELD(TensorPayload, inf_count),
                             FIELD(TensorPayload, zero_count),
                             FIELD(TensorPayload, saturated_count),
                             FIELD(TensorPayload, tiny_count),
                             FIELD(TensorPayload, dead_units),
                             FIELD(TensorPayload, sum),
                             FIELD(TensorPayload, sum_abs),
                             FIELD(TensorPayload, sum_squares),
                             FIELD(TensorPayload, max_abs),
                             FIELD(TensorPayload, units),
                             FIELD(TensorPayload, bits),
                             FIELD(TensorPayload, aux)};
  layout["ParameterPayload"] = {FIELD(ParameterPayload, numel),
                                FIELD(ParameterPayload, bits),
                                FIELD(ParameterPayload, value_sum),
                                FIELD(ParameterPayload, value_sum_squares),
                                FIELD(ParameterPayload, gradient_sum_squares),
                                FIELD(ParameterPayload, update_sum_squares),
                                FIELD(ParameterPayload, gradient_dot_update),
                                FIELD(ParameterPayload, value_max_abs),
                                FIELD(ParameterPayload, gradient_max_abs),
                                FIELD(ParameterPayload, value_nonfinite),
                                FIELD(ParameterPayload, gradient_nonfinite),
                                FIELD(ParameterPayload, gradient_zero),
                                FIELD(ParameterPayload, changed)};
}

void AddStepTypes(std::map<std::string, Fields>& layout) {
  layout["OptimizerPayload"] = {FIELD(OptimizerPayload, learning_rate),
                                FIELD(OptimizerPayload, loss_scale),
                                FIELD(OptimizerPayload, weight_decay),
                                FIELD(OptimizerPayload, gradient_sum_squares),
                                FIELD(OptimizerPayload, update_sum_squares),
                                FIELD(OptimizerPayload, beta1),
                                FIELD(OptimizerPayload, beta2),
                                FIELD(OptimizerPayload, epsilon),
                                FIELD(OptimizerPayload, group),
                                FIELD(OptimizerPayload, parameter_count),
                                FIELD(OptimizerPayload, skipped_total),
                                FIELD(OptimizerPayload, observed_count),
                                FIELD(OptimizerPayload, reserved),
                                FIELD(OptimizerPayload, reserved2)};
  layout["LossPayload"] = {FIELD(LossPayload, value),
                           FIELD(LossPayload, label_count),
                           FIELD(LossPayload, label_ignored),
                           FIELD(LossPayload, label_sum),
                           FIELD(LossPayload, label_sum_squares),
                           FIELD(LossPayload, logit_gradient_sum_abs),
                           FIELD(LossPayload, logsumexp_mean),
                           FIELD(LossPayload, loss_kind),
                           FIELD(LossPayload, reduction),
                           FIELD(LossPayload, class_count),
                           FIELD(LossPayload, nonfinite),
                           FIELD(LossPayload, reserved)};
  layout["StepPayload"] = {
      FIELD(StepPayload, attempts_total),  FIELD(StepPayload, dropped_total), FIELD(StepPayload, samples),
      FIELD(StepPayload, duration_ns),     FIELD(StepPayload, agent_ns),      FIELD(StepPayload, microbatches),
      FIELD(StepPayload, cadence),         FIELD(StepPayload, cadence_phase), FIELD(StepPayload, rotation_group),
      FIELD(StepPayload, rotation_groups), FIELD(StepPayload, shed_level),    FIELD(StepPayload, skipped_total),
      FIELD(StepPayload, recompiles),      FIELD(StepPayload, reserved)};
}

#undef FIELD

std::map<std::string, Fields> CodeLayout() {
  std::map<std::string, Fields> layout;
  AddSegmentTypes(layout);
  AddRecordTypes(layout);
  AddStepTypes(layout);
  return layout;
}

// The tables under "### Name" headings whose rows are "| offset | bytes | `field` … |".
std::map<std::string, Fields> DocumentedLayout() {
  std::map<std::string, Fields> layout;
  const std::regex heading("### (\\w+).*");
  const std::regex row("\\| (\\d+) \\| (\\d+) \\| `(\\w+)`.*");
  std::ifstream document(NEURALDBG_RING_FORMAT);
  std::string line, section;
  for (std::smatch match; std::getline(document, line);) {
    if (line.starts_with("#")) section.clear();
    if (std::regex_match(line, match, heading)) section = match[1];
    if (!section.empty() && std::regex_match(line, match, row)) {
      layout[section][match[3]] = {std::stoul(match[1]), std::stoul(match[2])};
    }
  }
  return layout;
}

TEST(LayoutTest, TheDocumentSaysWhatTheCodeDoes) {
  const std::map<std::string, Fields> documented = DocumentedLayout();
  for (const auto& [type, fields] : CodeLayout()) {
    ASSERT_TRUE(documented.contains(type)) << type;
    for (const auto& [name, place] : fields) {
      ASSERT_TRUE(documented.at(type).contains(name)) << type << "." << name;
      EXPECT_EQ(documented.at(type).at(name).offset, place.offset) << type << "." << name;
      EXPECT_EQ(documented.at(type).at(name).bytes, place.bytes) << type << "." << name;
    }
    EXPECT_EQ(documented.at(type).size(), fields.size()) << type << ": the document has a field that the code lacks";
  }
}

TEST(LayoutTest, FieldsLeaveNoHoles) {
  for (const auto& [type, fields] : CodeLayout()) {
    std::map<std::size_t, std::size_t> by_offset;
    for (const auto& [name, place] : fields) by_offset[place.offset] = place.bytes;
    std::size_t end = 0;
    for (const auto& [offset, bytes] : by_offset) {
      EXPECT_EQ(offset, end) << type << ": padding would carry what memory held before";
      end = offset + bytes;
    }
  }
}

// Segments of the release with this hash are out there. A new value needs a new major version.
TEST(LayoutTest, TheHashIsThatOfVersion1) {
  EXPECT_EQ(kLayoutMajor, 1);
  EXPECT_EQ(LayoutHash(), 0x1815eb4ec0e607ccull);
}

TEST(LayoutTest, DefaultOffsets) {
  const SegmentGeometry geometry{4, 16384, 8192, 4u << 20, kBlackBoxRecords};
  EXPECT_EQ(ComputeOffsets(geometry), (SegmentOffsets{4096, 8192, 12288, 81920, 4276224, 4538368, 12926976}));
}

TEST(LayoutTest, TheTagDependsOnEverythingItBinds) {
  const std::uint32_t tag = RecordTag(1, 2, 3, RecordKind::kTensor);
  EXPECT_NE(tag, RecordTag(2, 2, 3, RecordKind::kTensor));
  EXPECT_NE(tag, RecordTag(1, 3, 3, RecordKind::kTensor));
  EXPECT_NE(tag, RecordTag(1, 2, 4, RecordKind::kTensor));
  EXPECT_NE(tag, RecordTag(1, 2, 3, RecordKind::kLoss));
  const std::uint8_t zeros[16] = {};
  EXPECT_NE(RecordTag(RecordTagSalt(zeros), 0, 0, RecordKind::kNone), 0u) << "an empty slot is not a record";
}

}  // namespace
}  // namespace neuraldbg::testing
