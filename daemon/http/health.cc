#include "daemon/http/health.h"

#include "absl/strings/str_cat.h"

namespace neuraldbg {
namespace {

constexpr unsigned kServiceUnavailable = 503;

}  // namespace

HttpResponse Health(bool draining, std::span<const DaemonWarning> warnings) {
  HttpResponse response;
  if (draining) {
    response.status = kServiceUnavailable;
    response.body = "draining: this daemon was told to end and stores what is left.\n";
    return response;
  }
  for (const DaemonWarning& warning : warnings) {
    if (warning.kind != DaemonWarning::Kind::kNotStoring) continue;
    response.status = kServiceUnavailable;
    response.body = absl::StrCat("not storing: ", warning.text, " ", warning.remedy, "\n");
    return response;
  }
  response.body = "ok\n";
  return response;
}

}  // namespace neuraldbg
