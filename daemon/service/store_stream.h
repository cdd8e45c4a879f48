// A server stream that follows the store: whatever came after its cursor, page by page, then live.
//
// Threads: gRPC calls OnWriteDone, OnCancel and OnDone; the thread of LiveCalls calls Look. `mutex_` guards the state
// and is never held while calling into gRPC, whatever that calls back. Meanwhile a flag keeps everybody else away:
// `writing_` and `finished_` from starting another operation, `cancelling_` from finishing the call, after which gRPC
// may destroy what TryCancel still works on. Keeps itself alive until OnDone. Memory: one page.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "daemon/service/answer.h"

namespace neuraldbg {

template <typename Response>
class StoreStream final : public grpc::ServerWriteReactor<Response>, public LiveCall {
 public:
  // Appends to `page` (empty at the call) what came after the last page; `end` says that nothing will ever follow.
  using Source = std::function<absl::Status(std::deque<Response>& page, bool& end)>;

  static grpc::ServerWriteReactor<Response>* Start(ServiceContext& context, grpc::CallbackServerContext* call,
                                                   absl::StatusOr<Source> source) {
    auto stream = std::shared_ptr<StoreStream>(new StoreStream(context, call));
    stream->self_ = stream;
    if (!source.ok()) {
      stream->FinishOnce(source.status());
    } else {
      stream->source_ = *std::move(source);
      if (!context.live.Add(stream)) stream->FinishOnce(absl::ResourceExhaustedError("Too many streams are open."));
    }
    return stream.get();
  }

  void Look(bool closing) override {
    std::unique_lock lock(mutex_);
    if (finished_) return;
    if (closing) verdict_ = absl::UnavailableError("The daemon is going down.");
    if (writing_) {
      CheckStall(lock);
      return;
    }
    if (!verdict_) Fetch();
    Proceed(lock);
  }

  bool done() const override { return finished_; }

  void OnWriteDone(bool ok) override {
    std::unique_lock lock(mutex_);
    writing_ = false;
    if (!ok && !verdict_) verdict_ = absl::CancelledError("The caller is gone.");
    const bool wants_more = page_.empty() && !verdict_;
    Proceed(lock);
    if (lock.owns_lock()) lock.unlock();  // LiveCalls has a lock of its own, and calls us under it
    if (wants_more) context_.live.Wake();
  }

  void OnCancel() override {
    std::unique_lock lock(mutex_);
    if (!verdict_) verdict_ = absl::CancelledError("The caller gave up.");
    if (!writing_) Proceed(lock);  // otherwise OnWriteDone follows
  }

  void OnDone() override { std::exchange(self_, nullptr).reset(); }

 private:
  StoreStream(ServiceContext& context, grpc::CallbackServerContext* call) : context_(context), call_(call) {}

  void Fetch() {
    bool end = false;
    const absl::Status status = source_(page_, end);
    if (!status.ok()) {
      verdict_ = status;
    } else if (end && page_.empty()) {
      verdict_ = absl::OkStatus();
    }
  }

  // A reader that takes nothing gets told when it takes again, or is reset if it never does.
  void CheckStall(std::unique_lock<std::mutex>& lock) {
    const auto stalled = std::chrono::steady_clock::now() - write_started_;
    if (stalled > context_.stall_max && !verdict_) {
      page_.clear();
      verdict_ = absl::ResourceExhaustedError("The reader took nothing for too long; resume from the last id it got.");
    }
    if (stalled <= 2 * context_.stall_max) return;
    cancelling_ = true;
    lock.unlock();
    call_->TryCancel();
    lock.lock();
    cancelling_ = false;
    Proceed(lock);  // the write may have ended meanwhile
  }

  // Starts the next operation, if one is due, without the lock.
  void Proceed(std::unique_lock<std::mutex>& lock) {
    if (finished_ || writing_ || cancelling_) return;
    if (verdict_) {
      finished_ = true;
      const absl::Status status = *verdict_;
      lock.unlock();
      this->Finish(ToGrpcStatus(status));
    } else if (!page_.empty()) {
      sent_ = std::move(page_.front());
      page_.pop_front();
      writing_ = true;
      write_started_ = std::chrono::steady_clock::now();
      grpc::WriteOptions options;
      // The rest of the page follows at once. Not on the first write: it carries the headers, and gRPC 1.51 would keep
      // those back and never report the write as done.
      if (std::exchange(headers_sent_, true) && !page_.empty()) options.set_buffer_hint();
      lock.unlock();
      this->StartWrite(&sent_, options);
    }
  }

  void FinishOnce(const absl::Status& status) {
    std::unique_lock lock(mutex_);
    verdict_ = status;
    Proceed(lock);
  }

  ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  Source source_;
  std::shared_ptr<StoreStream> self_;
  mutable std::mutex mutex_;
  std::deque<Response> page_;
  Response sent_;  // must not change while it is being written
  bool headers_sent_ = false;
  bool writing_ = false;
  bool cancelling_ = false;
  std::atomic<bool> finished_ = false;   // written under mutex_; done() reads it without
  std::optional<absl::Status> verdict_;  // how the stream ends, once that is known
  std::chrono::steady_clock::time_point write_started_{};
};

}  // namespace neuraldbg
