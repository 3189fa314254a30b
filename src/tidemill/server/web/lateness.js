// Sums over the buckets of lateness that the broker counts: differences, quantiles, names.

export const difference = (later, earlier) => later.map((value, i) => Math.max(0, value - (earlier ? earlier[i] : 0)));

// The bucket in which a quantile lies; -1 if there is nothing.
function bucketOf(counts, share) {
  const total = counts.reduce((sum, value) => sum + value, 0);
  let left = Math.max(1, Math.ceil(total * share));
  return total ? counts.findIndex((value) => { left -= value; return left <= 0; }) : -1;
}

// The upper bound of that bucket; null if there is nothing.
export function quantile(counts, bounds, share) {
  const bucket = bucketOf(counts, share);
  return bucket < 0 ? null : bounds[Math.min(bucket, bounds.length - 1)];
}

const text = (ms) => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`);

// Lateness is counted in whole milliseconds, so the first bucket is “the same millisecond”.
export const lateBounds = (bounds) => [...bounds.map((bound) => (bound < 1 ? "< 1 ms" : `≤ ${text(bound)}`)), `> ${text(bounds[bounds.length - 1])}`];

// Lateness of all releases between the first and the last of these samples of running totals. *Now* and *History*
// both show this, so that the same window has the same p99 on both.
export function latenessOf(samples, bounds) {
  const counts = samples.length ? difference(samples[samples.length - 1], samples[0]) : [];
  const names = lateBounds(bounds);
  const name = (bucket) => (bucket < 0 ? "–" : names[bucket]);
  const released = counts.reduce((sum, value) => sum + value, 0);
  return { counts, released, p50: name(bucketOf(counts, 0.5)), p99: name(bucketOf(counts, 0.99)), max: name(counts.findLastIndex((value) => value)) };
}
