/* One step of each optimizer for one weight, the formulas of torch.optim. Exact and fast kernels run them in loops of
 * their own (sink.h, fast/sink.h). d is the gradient after weight decay; all operations are in float, in the order
 * written. */
#ifndef SMG_UPDATE_H
#define SMG_UPDATE_H

/* L2 weight decay: d = g + decay w */
static inline float smg_decayed(float g, float w, float decay) { return g + decay * w; }

/* SGD: w <- w - lr d */
static inline float smg_sgd(float w, float d, float lr) { return w - lr * d; }

/* Momentum: m <- beta1 m + d;  w <- w - lr m, or with Nesterov w <- w - lr (d + beta1 m) */
static inline float smg_momentum(float m, float d, float beta1) { return beta1 * m + d; }
static inline float smg_momentum_by(float m, float d, float lr, float beta1, int nesterov) {
    return lr * (nesterov ? d + beta1 * m : m);
}
static inline float smg_momentum_step(float w, float m, float d, float lr, float beta1, int nesterov) {
    return w - smg_momentum_by(m, d, lr, beta1, nesterov);
}

/* Adam (Kingma and Ba, algorithm 1): m <- lerp(m, d, 1 - beta1), v <- beta2 v + (1 - beta2) d^2.
 * take: 1 - beta, rounded once. As torch.lerp, the mean starts from its nearer end. */
static inline float smg_adam_mean(float m, float d, float beta1, float take1) {
    return take1 < 0.5f ? m + take1 * (d - m) : d - beta1 * (d - m);
}
static inline float smg_adam_square(float v, float d, float beta2, float take2) { return beta2 * v + take2 * (d * d); }

/* w <- shrink w - lr m / (root + eps). lr is already divided by the bias correction of m, root is the square root of v
 * divided by that of its bias correction; shrink is 1 - lr decay for AdamW, else 1. */
static inline float smg_adam_by(float m, float root, float lr, float eps) { return lr * (m / (root + eps)); }
static inline float smg_adam_step(float w, float m, float root, float lr, float eps, float shrink) {
    return w * shrink - smg_adam_by(m, root, lr, eps);
}
#endif
