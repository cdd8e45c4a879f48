// Properties over generated histories, shrunk to a short one when they fail: the reader against an arbitrary writer,
// the real writer against a model, manifest entries against their own encoding. RC_PARAMS="seed=…" repeats a failure.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <deque>

#include "shared/manifest.h"
#include "tests/fuzz/arbitrary_writer.h"
#include "tests/shared/segment_fixture.h"

namespace rc {

template <>
struct Arbitrary<neuraldbg::testing::Operation> {
  static Gen<neuraldbg::testing::Operation> arbitrary() {
    using neuraldbg::testing::Operation;
    // Numbers near those in use as well as any.
    const auto value = gen::oneOf(gen::inRange<std::uint64_t>(0, 200), gen::arbitrary<std::uint64_t>(),
                                  gen::element<std::uint64_t>(~0ull, 1ull << 32, 1ull << 63));
    return gen::build<Operation>(
        gen::set(&Operation::kind, gen::inRange<std::uint8_t>(0, neuraldbg::testing::kOperationKinds)),
        gen::set(&Operation::where, gen::arbitrary<std::uint32_t>()), gen::set(&Operation::value, value));
  }
};

}  // namespace rc

namespace neuraldbg::testing {

void showValue(const Operation& operation, std::ostream& out) {  // NOLINT(readability-identifier-naming)
  out << "{" << int{operation.kind} << ", " << operation.where << ", " << operation.value << "}";
}

namespace {

TEST(ReaderPropertyTest, NoWriterMakesTheReaderBreakAPromise) {
  ArbitraryWriter writer;
  const bool held = rc::check("whatever is done to a segment, its other lane is read whole and once",
                              [&](const std::vector<Operation>& operations) {
                                const std::string broken = writer.Play(operations);
                                RC_ASSERT(broken.empty());
                              });
  EXPECT_TRUE(held);
}

// What the ring is supposed to be, in the simplest words.
struct Model {
  std::deque<std::uint64_t> ring;  // published and not released
  std::size_t drained = 0;         // of those, from the front
  std::uint64_t dropped = 0, step = 0;
};

using RingPropertyTest = SegmentTest;

TEST_F(RingPropertyTest, WriterAndReaderAreABoundedQueueThatDropsTheNewest) {
  const bool held = rc::check("pushes, drains, releases and restarts as the model says", [&] {
    const auto commands = *rc::gen::container<std::vector<std::pair<int, int>>>(
        rc::gen::pair(rc::gen::inRange(0, 5), rc::gen::inRange(0, 100)));
    const auto writer = CreateOrFail(Options());
    auto reader = AttachOrFail(writer->path());
    Model model;
    for (const auto& [command, amount] : commands) {
      if (command <= 1) {
        for (int i = 0; i < amount; ++i, ++model.step) {
          const bool full = model.ring.size() == 64;
          RC_ASSERT(writer->Push(MakeRecord(3, model.step)) == (full ? PushOutcome::kDropped : PushOutcome::kPushed));
          full ? (void)++model.dropped : model.ring.push_back(model.step);
        }
      } else if (command == 2) {
        const std::size_t expected = std::min(model.ring.size() - model.drained, static_cast<std::size_t>(amount));
        const std::size_t taken = reader->Drain(
            [&](std::uint32_t, std::span<const Record> records) {
              for (const Record& record : records) {
                RC_ASSERT(record.step == model.ring.at(model.drained++));
                RC_ASSERT(IsIntact(record));
              }
            },
            static_cast<std::size_t>(amount));
        RC_ASSERT(taken == expected);
      } else if (command == 3) {
        reader->Release();
        model.ring.erase(model.ring.begin(), model.ring.begin() + static_cast<std::ptrdiff_t>(model.drained));
        model.drained = 0;
      } else {
        reader = AttachOrFail(writer->path());
        model.drained = 0;
      }
      RC_ASSERT(writer->attempts() == model.step);
      RC_ASSERT(reader->dropped_total() == model.dropped);
      RC_ASSERT(reader->SiteDropped(3) == model.dropped);
    }
    ::unlink(writer->path().c_str());
  });
  EXPECT_TRUE(held);
}

TEST(ManifestPropertyTest, ASiteSurvivesItsEncoding) {
  const bool held = rc::check("decode(encode(site)) is the site", [] {
    SiteEntry site;
    site.id = *rc::gen::arbitrary<std::uint32_t>();
    site.name = SanitizeString(*rc::gen::arbitrary<std::string>());
    site.owner = SanitizeString(*rc::gen::arbitrary<std::string>());
    site.twin = *rc::gen::arbitrary<std::uint32_t>();
    site.requires_grad = *rc::gen::arbitrary<bool>();
    site.shape = *rc::gen::resize(8, rc::gen::arbitrary<std::vector<std::uint64_t>>());
    RC_PRE(site.shape.size() <= kMaxDimensions);
    std::vector<std::byte> body;
    EncodeManifestEntry(site, body);
    const auto decoded = DecodeManifestEntry(ManifestEntryType(site), body);
    RC_ASSERT(decoded.ok());
    const auto& back = std::get<SiteEntry>(decoded.value());
    RC_ASSERT(back.id == site.id && back.name == site.name && back.owner == site.owner && back.twin == site.twin);
    RC_ASSERT(back.requires_grad == site.requires_grad && back.shape == site.shape);
  });
  EXPECT_TRUE(held);
}

}  // namespace
}  // namespace neuraldbg::testing
