// Sums over the buckets of lateness that the broker counts: differences, quantiles, names.

export const difference = (later, earlier) => later.map((value, i) => Math.max(0, value - (earlier ? earlier[i] : 0)));

// The upper bound of the bucket in which a quantile lies; null if there is nothing.
export function quantile(counts, bounds, share) {
  const total = counts.reduce((sum, value) => sum + value, 0);
  if (!total) return null;
  let left = Math.max(1, Math.ceil(total * share));
  for (let i = 0; i < counts.length; i += 1) {
    left -= counts[i];
    if (left <= 0) return i < bounds.length ? bounds[i] : bounds[bounds.length - 1];
  }
  return bounds[bounds.length - 1];
}

const text = (ms) => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`);

// Lateness is counted in whole milliseconds, so the first bucket is “the same millisecond”.
export const lateBounds = (bounds) => [...bounds.map((bound) => (bound < 1 ? "< 1 ms" : `≤ ${text(bound)}`)), `> ${text(bounds[bounds.length - 1])}`];
