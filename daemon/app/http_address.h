// Holds the address of --http for the dashboard, which this release does not serve yet: a port that somebody else has
// is reported at the start, as it will be when something is served there.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace neuraldbg {

class HttpAddress {
 public:
  // `address`: HOST:PORT. The message of an error is one sentence that names it.
  static absl::StatusOr<HttpAddress> Hold(const std::string& address);
  ~HttpAddress();
  HttpAddress(HttpAddress&& other) noexcept;
  HttpAddress& operator=(HttpAddress&&) = delete;

 private:
  explicit HttpAddress(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace neuraldbg
