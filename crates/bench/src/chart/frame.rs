//! What all charts have: title, subtitle, key, width, and figures on an axis.

use super::svg::{Canvas, Ink, MARGIN, Type};

/// Above a chart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Heading {
    /// What it shows.
    pub title: String,
    /// Of which machine, when, and how.
    pub subtitle: String,
    /// What the colours mean, where the chart itself does not say so.
    pub key: Vec<(Ink, &'static str)>,
}

/// Charts below this width are for telephones: what stands beside the data on others stands above or below it.
const NARROW: f64 = 560.0;

/// Whether a chart is for a telephone.
pub fn is_narrow(width: f64) -> bool {
    width < NARROW
}

impl Heading {
    /// Draws it, and returns where the rest begins. In a page the title stands outside the picture.
    pub fn draw(&self, canvas: &mut Canvas, width: f64, alone: bool) -> f64 {
        let room = width - 2.0 * MARGIN;
        let mut y = 4.0;
        if alone {
            let title = Type { size: 17.0, bold: true, ..Type::PLAIN };
            y = 14.0;
            for line in title.wrap(&self.title, room) {
                y += 20.0;
                canvas.text((MARGIN, y), title, &line);
            }
            y += 4.0;
            for line in Type::QUIET.wrap(&self.subtitle, room) {
                y += 16.0;
                canvas.text((MARGIN, y), Type::QUIET, &line);
            }
            y += 6.0;
        }
        let mut x = MARGIN;
        for (i, (ink, text)) in self.key.iter().enumerate() {
            let wide = 16.0 + Type::QUIET.width(text) + 14.0;
            if i == 0 || x + wide > width - MARGIN {
                (x, y) = (MARGIN, y + 18.0);
            }
            canvas.rect([x, y - 9.0, 10.0, 10.0], *ink, 1.0);
            canvas.text((x + 16.0, y), Type::QUIET, text);
            x += wide;
        }
        y + 12.0
    }
}

/// Round figures from 0 to `top`, about as many as there is room for.
pub fn ticks(top: f64, room: f64) -> Vec<f64> {
    if !(top.is_finite() && top > 0.0) {
        return Vec::new();
    }
    let about = top / (room / 90.0).clamp(2.0, 8.0);
    let power = 10f64.powf(about.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|s| *s >= 0.8 * about);
    let step = step.unwrap_or(10.0 * power);
    (0..=8).map(|n| f64::from(n) * step).take_while(|x| *x <= top * 1.0001).collect()
}

/// Figures of a logarithmic axis from `low` to `high`: 1, 2, 5 over few powers of ten, else the powers.
pub fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    if !(low > 0.0 && high.is_finite() && high >= low) {
        return Vec::new();
    }
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let within: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = (first..=last).flat_map(|power| within.iter().map(move |n| n * 10f64.powi(power)));
    all.filter(|x| (low..=high).contains(x)).collect()
}

/// A figure on an axis: `0.5`, `20`, `50k`, `2M`.
pub fn tick_text(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{}M", x / 1e6),
        x if x >= 1e4 => format!("{}k", x / 1e3),
        // Without the digits of a sum of binary fractions.
        x => format!("{}", (x * 1e6).round() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(43.0, 400.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        let texts: Vec<String> = ticks(0.7, 300.0).into_iter().map(tick_text).collect();
        assert_eq!(texts, ["0", "0.2", "0.4", "0.6"]);
        assert_eq!(log_ticks(3.0, 60.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(log_ticks(0.2, 30_000.0), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            assert!(ticks(bad, 100.0).is_empty() && log_ticks(bad, bad).is_empty());
        }
        assert_eq!([0.1 + 0.2, 20.0, 5e4, 2e6].map(tick_text), ["0.3", "20", "50k", "2M"]);
    }
}
