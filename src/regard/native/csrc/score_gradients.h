// The gradients of the steps of a score, which follow from those of the scores.

#pragma once

#include "relative_gradients.h"

namespace regard {

class ScoreGradients {
  public:
    explicit ScoreGradients(const Rows& rows) : rows(rows), scores(rows.scores), matrix(scores.matrix) {
        for (int64_t s = 0; s < matrix.score_steps; s++) {
            const ScoreStep& step = matrix.scores[s];
            if (step.kind == SOFT_CAP) slopes = allocate(scores.max_rows * rows.width);
            if (is_relative(step)) relative.emplace_back(step, rows);
        }
    }

    // For the rows of a head, from one chunk.
    void start(int64_t b, int64_t h) {
        for (RelativeGradients& each : relative) each.start(b, h);
    }

    // `chunk` is that of (batch, heads, chunks).
    void finish(int64_t chunk) {
        for (RelativeGradients& each : relative) each.finish(chunk);
    }

    // Where the derivatives of a soft-cap go for an active block; null if there is none.
    float* slopes_at(int64_t a) { return slopes ? slopes.get() + a * KEY_BLOCK : nullptr; }

    // Replace the gradients of the scores by what the steps pass on, and add those of their values.
    //
    // grad_query: where what depends on a query alone is added, without the scale; rows are `width` apart.
    void compute(float* grad_scores, int64_t chunk, float* grad_query, int64_t width, Panels& grad_key) {
        size_t num_relative = relative.size();
        for (int64_t s = matrix.score_steps - 1; s >= 0; s--) {
            if (is_relative(matrix.scores[s])) {
                relative[--num_relative].add(grad_scores, grad_query, width, grad_key);
                continue;
            }
            for (int64_t r = 0; r < rows.count(); r++)
                differentiate(matrix.scores[s], r, grad_scores + r * rows.width, chunk);
        }
    }

  private:
    void differentiate(const ScoreStep& step, int64_t r, float* row, int64_t chunk) {
        const int64_t position = scores.position(r);
        if (step.kind == SOFT_CAP) {
            for (int64_t j = 0; j < rows.num_blocks() * KEY_BLOCK; j += LANES)
                store(row + j, load(row + j) * load(slopes.get() + r * rows.width + j));
        } else if (step.gradient) {
            float* to = step.kind == ADD_BIAS
                            ? step.gradient + scores.b * step.gradient_batch + scores.h * step.gradient_head +
                                  (scores.first + r) * matrix.keys
                            : step.gradient + chunk * (matrix.queries + matrix.keys - 1) - position + step.shift;
            for (int64_t a = 0; a < rows.num_blocks(); a++)
                for (int64_t j = 0; j < rows.num_keys(a); j++) to[rows.first_key(a) + j] += row[a * KEY_BLOCK + j];
        }
    }

    const Rows& rows;
    const Scores& scores;
    const Matrix& matrix;
    FloatArray slopes;
    std::vector<RelativeGradients> relative;  // of the steps that have some, in order
};

}  // namespace regard
