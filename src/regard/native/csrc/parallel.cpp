// Run the tasks of a call on several threads: those of the OpenMP library that torch has loaded, or new ones.
//
// OpenMP's threads wait actively for a moment after each operation of torch. Other threads would compete with them for
// the cores; these are the same.

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "tasks.h"

extern "C" {
int regard_forward(const regard::Call* call, int64_t first, int64_t last);
int regard_backward(const regard::Call* call, int64_t first, int64_t last);
void regard_finish_forward(const regard::Call* call);
void regard_finish_backward(const regard::Call* call);
int regard_linear_tasks(const regard::LinearCall* call, int64_t first, int64_t last);
int regard_gelu_tasks(const regard::GeluCall* call, int64_t first, int64_t last);
}

namespace {

using Parallel = void (*)(void (*share)(void*), void* data, unsigned threads, unsigned flags);  // GOMP_parallel

// The tasks of a call from first to last. `run` computes some of them; it returns 0, or why it failed.
template <typename LibraryCall>
struct Work {
    const LibraryCall* call;
    int (*run)(const LibraryCall*, int64_t, int64_t);
    int64_t first, last;
    int threads;
    std::atomic<int> failed{0}, next{0};

    // Consecutive tasks, so that a head's keys are packed once.
    static void run_share(void* data) {
        Work& work = *static_cast<Work*>(data);
        const int64_t share = work.next.fetch_add(1), tasks = work.last - work.first;
        if (share >= work.threads) return;  // another thread was faster
        const int failed = work.run(work.call, work.first + tasks * share / work.threads,
                                    work.first + tasks * (share + 1) / work.threads);
        if (failed) work.failed = failed;
    }

    // Run all tasks; `parallel` is GOMP_parallel, or null to start new threads.
    int run_all(Parallel parallel) {
        if (threads == 1) {
            run_share(this);
        } else if (parallel != nullptr) {
            parallel(run_share, this, static_cast<unsigned>(threads), 0);
            while (next < threads) run_share(this);  // a team may have fewer threads
        } else {
            std::vector<std::thread> team;
            try {
                for (int t = 1; t < threads; t++) team.emplace_back(run_share, this);
            } catch (const std::exception&) {  // no more threads or memory: those that there are do all
            }
            while (next < threads) run_share(this);
            for (std::thread& thread : team) thread.join();
        }
        return failed;
    }
};

}  // namespace

// Run the tasks from first to last of a forward or backward pass. Returns 0, or 1 if there is not enough memory.
REGARD_EXPORT int regard_run(const regard::Call* call, int is_backward, int64_t first, int64_t last, int threads,
                             Parallel parallel) {
    Work<regard::Call> work{call, is_backward ? regard_backward : regard_forward, first, last, threads};
    const int failed = work.run_all(parallel);
    if (!failed && last == regard::count_tasks(*call))
        (is_backward ? regard_finish_backward : regard_finish_forward)(call);
    return failed;
}

// Compute a product of a few rows, on as many threads at most. Returns 0, or 1 if there is not enough memory.
REGARD_EXPORT int regard_linear(const regard::LinearCall* call, int threads, Parallel parallel) {
    const int64_t tasks = (call->out_features + regard::LINEAR_OUTPUTS - 1) / regard::LINEAR_OUTPUTS;
    threads = static_cast<int>(std::clamp<int64_t>(tasks, 1, threads));
    return Work<regard::LinearCall>{call, regard_linear_tasks, 0, tasks, threads}.run_all(parallel);
}

// Compute a GELU or its gradient, on as many threads at most. Returns 0.
REGARD_EXPORT int regard_gelu(const regard::GeluCall* call, int threads, Parallel parallel) {
    const int64_t tasks = (call->count + regard::GELU_ELEMENTS - 1) / regard::GELU_ELEMENTS;
    threads = static_cast<int>(std::clamp<int64_t>(tasks, 1, threads));
    return Work<regard::GeluCall>{call, regard_gelu_tasks, 0, tasks, threads}.run_all(parallel);
}

// The size of all calls, which differs if Python's structures are of another version.
REGARD_EXPORT int regard_call_bytes() {
    return sizeof(regard::Call) + sizeof(regard::LinearCall) + sizeof(regard::GeluCall);
}

#if defined(__x86_64__)
// AMX needs the permission of the operating system, which counts for all threads of the process.
static bool has_amx() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;  // BF16, TILE
#if defined(__linux__)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, tile data
#else
    return false;
#endif
}
#endif

// What this processor has: 4 for AMX, 3 for AVX-512 with fast products of bfloat16, 2 for AVX-512, 1 for AVX2 with FMA
// (and F16C, which all of these have), else 0.
REGARD_EXPORT int regard_level() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        if (!__builtin_cpu_supports("avx512bf16")) return 2;
        if (has_amx()) return 4;
        return __builtin_cpu_is("amd") ? 3
                                       : 2;  // Intel's products of bfloat16 take as long as twice as many of float32
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}
