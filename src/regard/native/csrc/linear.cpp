// Products of a few rows with a matrix of weights, as in a step of generation.
//
// Memory is the limit: each weight is read from it once, for all rows. A row's numbers are added up in an order that
// depends on the number of features alone: neither the other rows nor the number of threads change a result.

#include "call.h"
#include "simd.h"
#include "tensor.h"

namespace regard {
namespace {

constexpr int64_t OUTPUTS = LINEAR_OUTPUTS;
constexpr int64_t ROWS_AT_ONCE = LANES == 16 ? 4 : 2;  // as many as there are registers for

template <typename T>
class FewRows {
  public:
    explicit FewRows(const LinearCall& call)
        : call(call),
          features(call.in_features),
          width(round_up(features, LANES)),
          x(allocate(call.rows * width)),
          weight(static_cast<const T*>(call.weight)),
          bias(static_cast<const T*>(call.bias)),
          y(static_cast<T*>(call.y)) {
        read_rows({call.x, 0, 0, features, 1, call.dtype}, 0, 0, 0, call.rows, features, x.get(), width);
    }

    // OUTPUTS features of y from the first on, or as many as are left.
    void run(int64_t first) {
        const int64_t last = std::min(first + OUTPUTS, call.out_features);
        if (call.rows == 1 || last < first + OUTPUTS) {
            for (int64_t o = first; o < last; o++)
                for (int64_t i = 0; i < call.rows; i++) multiply<1, 1>(i, o);
            return;
        }
        for (int64_t i = 0; i < call.rows; i += ROWS_AT_ONCE) {
            const int64_t rows = std::min(ROWS_AT_ONCE, call.rows - i);
            if (rows == 1) multiply<1, OUTPUTS>(i, first);
            if (rows == 2) multiply<2, OUTPUTS>(i, first);
            if constexpr (ROWS_AT_ONCE == 4) {
                if (rows == 3) multiply<3, OUTPUTS>(i, first);
                if (rows == 4) multiply<4, OUTPUTS>(i, first);
            }
        }
    }

  private:
    // COUNT features of y of some rows.
    template <int64_t ROWS, int64_t COUNT>
    __attribute__((noinline)) void multiply(int64_t row, int64_t first) {
        const float* rows = x.get() + row * width;
        const T* weights = weight + first * features;
        const T* next = first + 2 * COUNT <= call.out_features ? weights + COUNT * features : weights;
        Floats sums[ROWS][COUNT] = {};
        int64_t f = 0;
        for (; f + LANES <= features; f += LANES)
            for (int64_t o = 0; o < COUNT; o++) {
                if (COUNT > 1) __builtin_prefetch(next + o * features + f);  // processors foresee only COUNT = 1
                const Floats vector = load_floats(weights + o * features + f);
                for (int64_t i = 0; i < ROWS; i++) sums[i][o] += vector * load(rows + i * width + f);
            }
        for (int64_t o = 0; o < COUNT; o++) {
            T rest[LANES] = {};  // beyond the last weight there may be no memory
            std::copy(weights + o * features + f, weights + (o + 1) * features, rest);
            for (int64_t i = 0; i < ROWS; i++) {
                if (f < features) sums[i][o] += load_floats(rest) * load(rows + i * width + f);
                const float sum = sum_of(sums[i][o]) + (bias ? to_float(bias[first + o]) : 0);
                from_float(sum, y[(row + i) * call.out_features + first + o]);
            }
        }
    }

    const LinearCall& call;
    const int64_t features, width;
    const FloatArray x;  // in float32, with 0 after the last feature
    const T *weight, *bias;
    T* y;
};

template <typename T>
void run_tasks(const LinearCall& call, int64_t first, int64_t last) {
    FewRows<T> rows(call);
    for (int64_t task = first; task < last; task++) rows.run(task * OUTPUTS);
}

}  // namespace
}  // namespace regard

// Tasks from first to last, of OUTPUTS features each. Returns 0, or 1 if there is not enough memory.
extern "C" int regard_linear_tasks(const regard::LinearCall* call, int64_t first, int64_t last) {
    using namespace regard;
    try {
        call->dtype == FLOAT32 ? run_tasks<float>(*call, first, last) : run_tasks<uint16_t>(*call, first, last);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
