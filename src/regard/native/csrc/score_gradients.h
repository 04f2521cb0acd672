// The gradients of the steps of a score, which follow from those of the scores.

#pragma once

#include "rows.h"

namespace regard {

class ScoreGradients {
  public:
    explicit ScoreGradients(const Rows& rows) : rows(rows), scores(rows.scores), matrix(scores.matrix) {
        for (int64_t s = 0; s < matrix.score_steps; s++) {
            const ScoreStep& step = matrix.scores[s];
            if (step.kind == SOFT_CAP) slopes = allocate(scores.max_rows * rows.width);
            if (step.kind == ADD_RELATIVE) {
                by_distance.resize(2 * step.shift + 1);
                grad_query = allocate(scores.max_rows * matrix.head_dim);
            }
        }
    }

    // Where the derivatives of a soft-cap go for an active block; null if there is none.
    float* slopes_at(int64_t a) { return slopes ? slopes.get() + a * KEY_BLOCK : nullptr; }

    // Replace the gradients of the scores by what the steps pass on, and add those of their values. `chunk` is that of
    // (batch, heads, chunks).
    void compute(float* grad_scores, int64_t chunk) {
        for (int64_t s = matrix.score_steps - 1; s >= 0; s--)
            for (int64_t r = 0; r < rows.count(); r++)
                differentiate(matrix.scores[s], r, grad_scores + r * rows.width, chunk);
    }

    // What relative positions send to a query, without the scale; null if there are none.
    const float* query_gradient(int64_t r) const {
        return grad_query ? grad_query.get() + r * matrix.head_dim : nullptr;
    }

  private:
    void differentiate(const ScoreStep& step, int64_t r, float* row, int64_t chunk) {
        const int64_t position = scores.position(r);
        if (step.kind == SOFT_CAP) {
            for (int64_t j = 0; j < rows.num_blocks() * KEY_BLOCK; j += LANES)
                store(row + j, load(row + j) * load(slopes.get() + r * rows.width + j));
        } else if (step.kind == ADD_RELATIVE) {
            differentiate_relative(step, r, row, chunk);
        } else if (step.gradient) {
            float* to = step.kind == ADD_BIAS
                            ? step.gradient + scores.b * step.gradient_batch + scores.h * step.gradient_head +
                                  (scores.first + r) * matrix.keys
                            : step.gradient + chunk * (matrix.queries + matrix.keys - 1) - position + step.shift;
            for (int64_t a = 0; a < rows.num_blocks(); a++)
                for (int64_t j = 0; j < rows.num_keys(a); j++) to[rows.first_key(a) + j] += row[a * KEY_BLOCK + j];
        }
    }

    // Shaw's relative positions. One entry may collect nearly all keys of a row: they are added up in double.
    void differentiate_relative(const ScoreStep& step, int64_t r, const float* row, int64_t chunk) {
        const int64_t distances = by_distance.size(), dim = matrix.head_dim, reach = step.shift;
        std::fill(by_distance.begin(), by_distance.end(), 0.0);
        for (int64_t a = 0; a < rows.num_blocks(); a++) {
            const int64_t distance = rows.first_key(a) - scores.position(r);
            for (int64_t j = 0; j < rows.num_keys(a); j++)
                by_distance[std::clamp(distance + j, -reach, reach) + reach] += row[a * KEY_BLOCK + j];
        }
        float* to_query = grad_query.get() + r * dim;
        std::memset(to_query, 0, 4 * dim);
        for (int64_t d = 0; d < distances; d++) {
            const float sum = static_cast<float>(by_distance[d]), *query = scores.queries.get() + r * dim;
            if (sum == 0) continue;
            const float* vector = at<float>(step.values, 0, scores.head_of_rules(scores.h), d);
            for (int64_t f = 0; f < dim; f++) to_query[f] += sum * vector[f];
            float* to = step.gradient + (chunk * distances + d) * dim;
            for (int64_t f = 0; f < dim && step.gradient; f++) to[f] += sum * query[f];
        }
    }

    const Rows& rows;
    const Scores& scores;
    const Matrix& matrix;
    FloatArray slopes, grad_query;
    std::vector<double> by_distance;
};

}  // namespace regard
