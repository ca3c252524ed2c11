//! Lines over named points, on a logarithmic axis, labelled at their ends.

use super::frame::{Heading, is_narrow, log_ticks, tick_text};
use super::svg::{Canvas, Ink, MARGIN, Type};

/// A chart of lines.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lines {
    /// Above it.
    pub heading: Heading,
    /// Under the horizontal axis.
    pub x_label: String,
    /// Above the vertical axis.
    pub y_label: String,
    /// The names of the points, left to right.
    pub points: Vec<String>,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line; points without a value are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The arm.
    pub name: String,
    /// By point.
    pub values: Vec<Option<f64>>,
}

const HIGH: f64 = 320.0;
/// From one label to the next.
const LABEL: f64 = 15.0;
const SMALL: Type = Type { size: 11.0, ..Type::QUIET };
const NAME: Type = Type { size: 11.5, ..Type::NAME };

fn drawable(value: &f64) -> bool {
    value.is_finite() && *value > 0.0
}

impl Lines {
    /// The lines that have a point.
    fn drawn(&self) -> Vec<(&Series, Vec<(usize, f64)>)> {
        let points = |s: &Series| -> Vec<(usize, f64)> {
            let values = s.values.iter().take(self.points.len()).enumerate();
            values.filter_map(|(i, v)| Some((i, v.filter(drawable)?))).collect()
        };
        let all = self.series.iter().map(|s| (s, points(s)));
        all.filter(|(_, points)| !points.is_empty()).collect()
    }

    /// Whether there is a line to draw.
    pub fn is_empty(&self) -> bool {
        self.drawn().is_empty()
    }

    /// The chart as SVG.
    pub fn svg(&self, width: f64, alone: bool) -> String {
        let drawn = self.drawn();
        let narrow = is_narrow(width);
        let mut canvas = Canvas::default();
        let mut top = self.heading.draw(&mut canvas, width, alone);
        canvas.text((MARGIN, top + 12.0), SMALL, &self.y_label);
        top += 22.0;
        let names = drawn.iter().map(|(s, _)| NAME.width(&s.name)).fold(0.0, f64::max);
        // On a telephone numbers stand at the ends of the lines, and their names below.
        let labels = if narrow { 30.0 } else { (names + 18.0).min(width * 0.35) };
        let high = HIGH.max(LABEL * drawn.len() as f64);
        let bottom = top + high;
        let values = || drawn.iter().flat_map(|(_, points)| points.iter().map(|(_, v)| *v));
        let low = values().fold(f64::INFINITY, f64::min) / 1.2;
        let over = values().fold(0.0, f64::max) * 1.2;
        let span = (over / low).ln().max(1e-9);
        let y = |value: f64| bottom - high * (value / low).ln() / span;
        let ticks = log_ticks(low, over);
        let figures = ticks.iter().map(|tick| SMALL.width(&tick_text(*tick))).fold(0.0, f64::max);
        let (left, right) = (MARGIN + figures + 10.0, width - MARGIN - labels);
        let step = (right - left) / self.points.len().saturating_sub(1).max(1) as f64;
        let x = |point: usize| left + step * point as f64;
        for tick in ticks {
            canvas.line(&[(left - 4.0, y(tick)), (right, y(tick))], Ink::Grid, 1.0);
            let kind = Type { anchor: "end", ..SMALL };
            canvas.text((left - 8.0, y(tick) + 4.0), kind, &tick_text(tick));
        }
        let widest = self.points.iter().map(|p| SMALL.width(p)).fold(0.0, f64::max) + 6.0;
        let every = (widest / step.max(1.0)).ceil().max(1.0) as usize;
        for (i, point) in self.points.iter().enumerate().step_by(every) {
            let most = width - MARGIN - SMALL.width(point) / 2.0;
            let at = (x(i).min(most), bottom + 16.0);
            canvas.text(at, Type { anchor: "middle", ..SMALL }, point);
        }
        let middle = Type { anchor: "middle", ..SMALL };
        canvas.text((f64::midpoint(left, right), bottom + 34.0), middle, &self.x_label);
        let ends: Vec<f64> =
            drawn.iter().filter_map(|(_, points)| Some(y(points.last()?.1))).collect();
        let places = apart(&ends, [top, bottom]);
        for (i, (series, points)) in drawn.iter().enumerate() {
            let ink = Ink::Nth(i);
            // Only from one point to the next: what lies between two that are apart was not measured.
            for together in points.chunk_by(|a, b| a.0 + 1 == b.0) {
                let line: Vec<(f64, f64)> = together.iter().map(|(p, v)| (x(*p), y(*v))).collect();
                canvas.line(&line, ink, 2.0);
            }
            let points: Vec<(f64, f64)> = points.iter().map(|(p, v)| (x(*p), y(*v))).collect();
            points.iter().for_each(|point| canvas.dot(*point, ink));
            let (Some(end), Some(place)) = (points.last(), places.get(i)) else { continue };
            let label = Type { ink, ..NAME };
            canvas.line(&[(end.0 + 5.0, end.1), (right + 9.0, *place)], ink, 0.6);
            let at = (right + 12.0, place + 4.0);
            match narrow {
                true => canvas.text(at, Type { bold: true, ..label }, &(i + 1).to_string()),
                false => canvas.text(at, label, &NAME.fit(&series.name, width - at.0)),
            }
        }
        let mut end = bottom + 46.0;
        if narrow {
            // In the order in which the lines end.
            let mut order: Vec<usize> = (0..drawn.len()).collect();
            order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
            for i in order {
                let label = Type { ink: Ink::Nth(i), ..NAME };
                canvas.text(
                    (MARGIN, end + 8.0),
                    Type { bold: true, ..label },
                    &(i + 1).to_string(),
                );
                let name = NAME.fit(&drawn[i].0.name, width - 2.0 * MARGIN - 24.0);
                canvas.text((MARGIN + 24.0, end + 8.0), label, &name);
                end += 18.0;
            }
        }
        canvas.finish([width, end], &self.heading.title, alone)
    }
}

/// Places for labels that want to stand at `wanted`, so that none covers another.
fn apart(wanted: &[f64], [top, bottom]: [f64; 2]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = wanted.to_vec();
    let mut free = top;
    for &i in &order {
        places[i] = places[i].max(free);
        free = places[i] + LABEL;
    }
    let mut free = bottom;
    for &i in order.iter().rev() {
        places[i] = places[i].min(free);
        free = places[i] - LABEL;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_cover_each_other() {
        for wanted in [&[10.0, 11.0, 12.0][..], &[290.0, 300.0, 300.0], &[0.0; 20], &[], &[5.0]] {
            let mut places = apart(wanted, [0.0, 300.0]);
            places.sort_by(f64::total_cmp);
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] > LABEL - 1e-9), "{places:?}");
            assert!(places.iter().all(|place| (-1e-9..=300.0).contains(place)), "{places:?}");
        }
        assert_eq!(apart(&[10.0, 200.0], [0.0, 300.0]), [10.0, 200.0]);
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let lines = |values: Vec<Option<f64>>| Lines {
            points: vec!["1 B".into(), "64 B".into(), "1 KiB".into()],
            series: vec![Series { name: "kernel-udp-busy-poll".into(), values }],
            ..Lines::default()
        };
        for values in [vec![], vec![None; 3], vec![Some(0.0)], vec![Some(f64::NAN), Some(-1.0)]] {
            assert!(lines(values.clone()).is_empty());
            assert!(lines(values).svg(860.0, true).ends_with("</svg>\n"));
        }
        let more_values_than_points = lines(vec![Some(7.2), None, Some(1e3), Some(1e9)]);
        let svg = more_values_than_points.svg(860.0, true);
        assert!(
            svg.contains("kernel-udp-busy-poll") && svg.matches("<circle").count() == 2,
            "{svg}"
        );
    }
}
