// Which requests are meant for this port: the rules of docs/security-model.md that stand in the headers. Pure.
//
// A browser of the user is let in like the user (same uid), whatever page it shows. A page of somebody else must
// therefore not be able to ask through it: not by a name of its own that resolves to 127.0.0.1 (Host), and not from
// another origin (Origin).
#pragma once

#include <string>

#include "absl/status/status.h"

namespace neuraldbg {

// `host`: the header. Loopback names, the host that the port was bound to by configuration, and the address that the
// connection came in on; any port, because tunnels change it. PERMISSION_DENIED with one sentence otherwise.
absl::Status CheckHost(const std::string& host, const std::string& bound_host, const std::string& local_address);

// `origin`: the header. Only a page of this very port, as the browser sees it, may ask.
absl::Status CheckOrigin(const std::string& origin, const std::string& host);

}  // namespace neuraldbg
