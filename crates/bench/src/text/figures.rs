//! Figures as text: three digits where that is enough.

/// Microseconds with three significant digits at most.
pub fn us_text(us: f64) -> String {
    match us {
        x if x < 10.0 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

/// A time with its unit: `7.23 us`, `20.0 ms`.
pub fn time_text(us: f64) -> String {
    match us {
        x if x >= 1e4 => format!("{} ms", us_text(x / 1e3)),
        x => format!("{} \u{b5}s", us_text(x)),
    }
}

/// A percentile, or `-` if a round has too few requests for it.
pub fn tail_text(us: Option<f64>) -> String {
    us.map_or("-".to_owned(), us_text)
}

/// A ratio and its interval.
pub fn ratio_text(ratio: f64, ci95: Option<[f64; 2]>) -> String {
    // Of a small one two decimals would leave one digit.
    let digits = if ratio < 0.1 { 3 } else { 2 };
    match ci95 {
        Some([lo, hi]) => format!("{ratio:.digits$} [{lo:.digits$}-{hi:.digits$}]"),
        None => format!("{ratio:.digits$}"),
    }
}

/// `16 KiB`, `1472 B`.
pub fn bytes_text(n: usize) -> String {
    match n {
        n if n >= 1024 && n % 1024 == 0 => format!("{} KiB", n / 1024),
        n => format!("{n} B"),
    }
}

/// `10,000`.
pub fn count_text(n: u32) -> String {
    match n {
        n if n >= 1000 => format!("{},{:03}", n / 1000, n % 1000),
        n => n.to_string(),
    }
}

/// Bytes per idle object: `1.6 KiB`, `0 B`.
pub fn weight_text(bytes: Option<f64>) -> String {
    match bytes {
        None => "not known".to_owned(),
        Some(n) if n >= 1024.0 => format!("{:.1} KiB", n / 1024.0),
        // Other programs' memory may have shrunk meanwhile.
        Some(n) => format!("{:.0} B", n.max(0.0)),
    }
}

/// A rate with three digits: `9.23 Gbit/s`, `41.5 Mbit/s`, `12,400 connections/s`.
pub fn rate_text(per_second: f64, unit: &str) -> String {
    match per_second {
        x if unit != "bit/s" => format!("{} {unit}", grouped(x)),
        x if x >= 1e9 => format!("{} Gbit/s", us_text(x / 1e9)),
        x => format!("{} Mbit/s", us_text(x / 1e6)),
    }
}

/// A whole number with commas between thousands.
pub fn grouped(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let mut text = String::from(if x <= -0.5 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        for (us, text) in [(0.098, "0.10"), (7.234, "7.23"), (12.04, "12.0"), (1234.5, "1234")] {
            assert_eq!(us_text(us), text);
        }
    }
}
