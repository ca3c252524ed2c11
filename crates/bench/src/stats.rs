//! Figures from samples: histograms, medians over rounds, ratios with confidence intervals.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Round-trip times in nanoseconds, three significant digits, up to a minute.
pub type Rtts = Histogram<u64>;

/// Room for one measurement, allocated before it starts.
pub fn histogram() -> Rtts {
    // The bounds are constants within what the crate accepts; the fallback only widens them.
    Rtts::new_with_bounds(1, 60_000_000_000, 3)
        .unwrap_or_else(|_| Rtts::new(3).unwrap_or_else(|_| unreachable!("3 digits are valid")))
}

/// The quantile in microseconds.
pub fn quantile_us(rtts: &Rtts, q: f64) -> f64 {
    rtts.value_at_quantile(q) as f64 / 1e3
}

/// The median of `values`: of an even number the mean of the two in the middle; 0 if empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    median_sorted(&sorted)
}

fn median_sorted(sorted: &[f64]) -> f64 {
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[mid],
        _ => f64::midpoint(sorted[mid - 1], sorted[mid]),
    }
}

/// Latency figures of one arm, in microseconds.
///
/// `p50` to `p99_9` are medians over rounds of that round's percentile, so that one disturbed
/// round has little influence; `p99_99`, `max`, `min` and `mean` are over all transactions. None if a round
/// (for `p99_99` all of them) has too few transactions for any to lie beyond: it would just be the maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RttUs {
    pub min: f64,
    pub p50: f64,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub p99_9: Option<f64>,
    pub p99_99: Option<f64>,
    pub max: f64,
    pub mean: f64,
}

impl RttUs {
    /// Summarises the rounds of one arm.
    pub fn over_rounds<'a>(rounds: impl Iterator<Item = &'a Rtts> + Clone) -> Self {
        let mid = |q| median(&rounds.clone().map(|r| quantile_us(r, q)).collect::<Vec<_>>());
        let fewest = rounds.clone().map(|r| r.len()).min().unwrap_or(0);
        let but_one_in = |n: u64| (fewest >= n).then(|| mid(1.0 - 1.0 / n as f64));
        let mut all = histogram();
        for round in rounds.clone() {
            // Same bounds on both sides, so the sum cannot fail.
            let _ = all.add(round);
        }
        Self {
            min: all.min() as f64 / 1e3,
            p50: mid(0.5),
            p90: but_one_in(10),
            p99: but_one_in(100),
            p99_9: but_one_in(1_000),
            p99_99: (all.len() >= 10_000).then(|| quantile_us(&all, 0.9999)),
            max: all.max() as f64 / 1e3,
            mean: all.mean() / 1e3,
        }
    }
}

/// The ratio of two arms measured in the same rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Median over rounds of (arm / baseline).
    pub ratio: f64,
    /// 95 % interval; none with a single round.
    pub ci95: Option<[f64; 2]>,
}

/// Resamples of the bootstrap.
const RESAMPLES: usize = 10_000;

/// Median of the paired ratios `arm[r] / baseline[r]` with a 95 % interval from a bootstrap over rounds.
///
/// Returns none if the two have no round in common or a baseline is zero.
pub fn paired_ratio(arm: &[f64], baseline: &[f64]) -> Option<Ratio> {
    let ratios: Vec<f64> = arm.iter().zip(baseline).map(|(a, b)| a / b).collect();
    if ratios.is_empty() || ratios.iter().any(|r| !r.is_finite()) {
        return None;
    }
    Some(Ratio { ratio: median(&ratios), ci95: ci95_of_median(&ratios) })
}

/// The same, over the rounds that both have.
pub fn ratio_of_rounds(arm: &[Option<f64>], baseline: &[Option<f64>]) -> Option<Ratio> {
    let both = arm.iter().zip(baseline).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
    let (arm, baseline): (Vec<f64>, Vec<f64>) = both.unzip();
    paired_ratio(&arm, &baseline)
}

/// The 95 % interval of the median of the rounds' values; none with fewer than two. Deterministic: the
/// generator has a constant seed.
///
/// A plain percentile interval is too narrow for the few rounds of a run. It is widened
/// as Hesterberg proposes (What Teachers Should Know About the Bootstrap, 2015, section 5.2,
/// "expanded percentile interval"), which brings its coverage near the nominal one.
pub fn ci95_of_median(values: &[f64]) -> Option<[f64; 2]> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mut random = SplitMix(0x5eed);
    let mut draw = vec![0.0; n];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            draw.fill_with(|| values[(random.next() % n as u64) as usize]);
            draw.sort_unstable_by(f64::total_cmp);
            median_sorted(&draw)
        })
        .collect();
    medians.sort_unstable_by(f64::total_cmp);
    let tail = normal_cdf(-(n as f64 / (n - 1) as f64).sqrt() * student_t_975(n - 1));
    let low = (tail * RESAMPLES as f64) as usize;
    let high = RESAMPLES - 1 - low;
    Some([medians[low], medians[high]])
}

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The 0.975 quantile of Student's t.
fn student_t_975(freedom: usize) -> f64 {
    const TABLE: [f64; 10] =
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    match freedom {
        0 => f64::INFINITY,
        // Cornish-Fisher to second order: below 0.1 % off from 11 degrees on.
        n => TABLE.get(n - 1).copied().unwrap_or_else(|| {
            let (z, n) = (1.959_964_f64, n as f64);
            z + (z.powi(3) + z) / (4.0 * n)
                + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }),
    }
}

/// Abramowitz and Stegun 26.2.17, error below 7.5e-8.
fn normal_cdf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn percentiles_of_a_known_distribution() {
        let mut h = histogram();
        for us in 1..=100_000u64 {
            h.saturating_record(us * 1000);
        }
        let r = RttUs::over_rounds([&h, &h].into_iter());
        for (got, want) in [
            (Some(r.p50), 50_000.0),
            (r.p90, 90_000.0),
            (r.p99, 99_000.0),
            (r.p99_9, 99_900.0),
            (r.p99_99, 99_990.0),
            (Some(r.max), 100_000.0),
            (Some(r.mean), 50_000.5),
        ] {
            let got = got.expect("enough");
            assert!((got / want - 1.0).abs() < 0.001, "{got} for {want}");
        }
        assert!((r.min - 1.0).abs() < 0.001);
    }

    #[test]
    fn one_disturbed_round_has_little_influence() {
        let (mut calm, mut wild) = (histogram(), histogram());
        for _ in 0..1000 {
            calm.saturating_record(10_000);
            wild.saturating_record(900_000);
        }
        let r = RttUs::over_rounds([&calm, &wild, &calm].into_iter());
        assert!((r.p99.expect("enough") - 10.0).abs() < 0.05, "{r:?}");
        assert!(r.max > 899.0);
    }

    #[test]
    fn percentiles_never_decrease() {
        let mut random = SplitMix(7);
        let rounds: Vec<Rtts> = (0..8)
            .map(|_| {
                let mut h = histogram();
                for _ in 0..5_000 {
                    let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
                    h.saturating_record((5_000.0 / (1.0 - u).powf(0.7)) as u64);
                }
                h
            })
            .collect();
        let r = RttUs::over_rounds(rounds.iter());
        let tail = [r.p90, r.p99, r.p99_9, r.p99_99].map(|us| us.expect("enough"));
        let steps = [&[r.min, r.p50], &tail[..], &[r.max]].concat();
        assert!(steps.is_sorted(), "{steps:?}");
    }

    #[test]
    fn a_percentile_with_no_sample_beyond_it_is_left_out() {
        let of = |counts: &[u64]| {
            let rounds: Vec<Rtts> = counts
                .iter()
                .map(|&count| {
                    let mut h = histogram();
                    (1..=count).for_each(|us| h.saturating_record(us * 1000));
                    h
                })
                .collect();
            let r = RttUs::over_rounds(rounds.iter());
            [r.p90, r.p99, r.p99_9, r.p99_99].map(|us| us.is_some())
        };
        assert_eq!(of(&[]), [false; 4]);
        assert_eq!(of(&[9, 10]), [false; 4]);
        assert_eq!(of(&[10, 10]), [true, false, false, false]);
        assert_eq!(of(&[100, 999]), [true, true, false, false]);
        assert_eq!(of(&[1_000, 8_999]), [true, true, true, false]);
        assert_eq!(of(&[999, 9_001]), [true, true, false, true]);
        assert_eq!(of(&[1_000, 9_000]), [true; 4]);
    }

    #[test]
    fn distribution_functions_known_answers() {
        assert!((normal_cdf(0.0) - 0.5).abs() < 1e-6);
        assert!((normal_cdf(-1.959_964) - 0.025).abs() < 1e-6);
        assert!((normal_cdf(1.0) - 0.841_344_75).abs() < 1e-6);
        assert!((student_t_975(11) - 2.201).abs() < 0.003);
        assert!((student_t_975(30) - 2.042).abs() < 0.001);
    }

    #[test]
    fn ratios_are_paired_and_repeatable() {
        // Both arms drift together; the ratio does not.
        let base: Vec<f64> = (0..8).map(|r| 10.0 + f64::from(r) * 5.0).collect();
        let arm: Vec<f64> = base.iter().map(|b| b * 0.5).collect();
        let r = paired_ratio(&arm, &base).expect("a ratio");
        assert_eq!(r, Ratio { ratio: 0.5, ci95: Some([0.5, 0.5]) });
        assert_eq!(paired_ratio(&arm, &base), paired_ratio(&arm, &base));
        assert_eq!(paired_ratio(&[2.0], &[1.0]), Some(Ratio { ratio: 2.0, ci95: None }));
        assert_eq!(paired_ratio(&[], &[]), None);
        assert_eq!(paired_ratio(&[1.0, 1.0], &[1.0, 0.0]), None);
    }

    /// A standard normal draw (sum of twelve uniforms).
    fn normal(random: &mut SplitMix) -> f64 {
        (0..12).map(|_| (random.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }

    #[test]
    fn the_intervals_coverage_is_near_95_percent() {
        let truth = 0.6;
        let mut random = SplitMix(42);
        for rounds in [6, 8, 10, 16] {
            let trials = 400;
            let mut covered = 0;
            for _ in 0..trials {
                let base: Vec<f64> =
                    (0..rounds).map(|_| 40.0 * (0.2 * normal(&mut random)).exp()).collect();
                let arm: Vec<f64> =
                    base.iter().map(|b| b * truth * (0.1 * normal(&mut random)).exp()).collect();
                let ci = paired_ratio(&arm, &base).and_then(|r| r.ci95).expect("an interval");
                covered += usize::from(ci[0] <= truth && truth <= ci[1]);
            }
            let coverage = covered as f64 / f64::from(trials);
            assert!((0.91..=0.995).contains(&coverage), "{rounds} rounds: {coverage}");
        }
    }
}
