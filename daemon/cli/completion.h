// Completion scripts, made from the same tables as the parser, so that they cannot lag behind it.
#pragma once

#include <string>

namespace neuraldbg {

// `shell`: bash, zsh or fish. Empty for anything else.
std::string CompletionScript(const std::string& shell);

}  // namespace neuraldbg
