#include "call.h"
extern "C" int regard_backward(const regard::Call*, int64_t, int64_t) { return 1; }
extern "C" void regard_finish_backward(const regard::Call*) {}
