#include "tests/tools/engine_replay/frame_file.h"

#include <cstring>
#include <nlohmann/json.hpp>

namespace neuraldbg {
namespace {

constexpr std::uint32_t kMaxSamples = 1U << 20;

template <typename T>
bool Read(std::istream& stream, T& value) {
  char bytes[sizeof(T)];
  if (!stream.read(bytes, sizeof(T))) return false;
  std::memcpy(&value, bytes, sizeof(T));
  return true;
}

SiteEntry ReadSite(const nlohmann::json& json) {
  SiteEntry site;
  site.id = json.at("id");
  site.name = json.at("name");
  site.module = json.at("module");
  site.module_kind = json.at("module_kind");
  site.role = static_cast<SiteRole>(json.at("role").get<std::uint8_t>());
  site.phase = static_cast<Phase>(json.at("phase").get<std::uint8_t>());
  site.dtype = static_cast<DType>(json.at("dtype").get<std::uint8_t>());
  site.requires_grad = json.at("requires_grad");
  site.topological_index = json.at("topological_index");
  site.twin = json.at("twin");
  site.owner = json.at("owner");
  site.shape = json.at("shape").get<std::vector<std::uint64_t>>();
  site.optimizer_group = json.value("optimizer_group", kNoSite);
  return site;
}

}  // namespace

FrameFile::FrameFile(const std::string& path) : stream_(path, std::ios::binary) {
  std::string line;
  if (!std::getline(stream_, line)) return;
  ReadTopology(line);
  ok_ = true;
}

void FrameFile::ReadTopology(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line);
  for (const auto& site : json.at("sites")) topology_.sites.push_back(ReadSite(site));
  for (const auto& edge : json.at("edges")) topology_.edges.push_back({edge.at(0), edge.at(1)});
  for (const auto& sink : json.at("sinks")) topology_.sinks.push_back(sink);
  for (const auto& init : json.at("inits")) {
    ParameterInitEntry entry;
    entry.site = init.at("site");
    entry.numel = init.at("numel");
    entry.sum = init.at("sum");
    entry.sum_squares = init.at("sum_squares");
    topology_.parameter_inits.push_back(entry);
  }
  topology_.run.graph_exact = true;
  topology_.ready = true;
}

bool FrameFile::Next(StepFrame& frame) {
  std::uint8_t complete = 0, applied = 0, training = 0, reserved = 0;
  std::uint32_t count = 0;
  frame = StepFrame{};
  if (!Read(stream_, frame.step) || !Read(stream_, complete) || !Read(stream_, applied) || !Read(stream_, training) ||
      !Read(stream_, reserved) || !Read(stream_, count) || count > kMaxSamples) {
    return false;
  }
  frame.complete = complete != 0;
  frame.applied = applied != 0;
  frame.training = training != 0;
  frame.records_received = count;
  frame.samples.resize(count);
  for (Sample& sample : frame.samples) {
    std::uint8_t kind = 0, phase = 0, has_bits = 0;
    const bool read = Read(stream_, sample.site) && Read(stream_, kind) && Read(stream_, phase) &&
                      Read(stream_, sample.flags) && Read(stream_, sample.present) && Read(stream_, sample.bits) &&
                      Read(stream_, has_bits) && Read(stream_, sample.value);
    if (!read) return false;
    sample.kind = static_cast<RecordKind>(kind);
    sample.phase = static_cast<Phase>(phase);
    sample.has_bits = has_bits != 0;
  }
  return true;
}

}  // namespace neuraldbg
