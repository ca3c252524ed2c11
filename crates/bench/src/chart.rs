//! Line charts as SVG: one line per arm over named points, latency on a logarithmic axis.

use std::path::Path;

use plotters::prelude::*;

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Above the chart.
    pub title: String,
    /// Under the horizontal axis.
    pub x_label: String,
    /// Beside the vertical axis.
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

const SIZE: (u32, u32) = (960, 540);

/// Okabe and Ito's colours, which colour-blind readers can distinguish; without yellow, too pale on white.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

impl Chart {
    /// The chart as SVG text.
    ///
    /// # Errors
    /// One line if there is nothing to draw.
    pub fn svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())
            .map_err(|e| format!("cannot draw the chart: {e}"))?;
        Ok(svg)
    }

    /// Writes the chart to a file.
    ///
    /// # Errors
    /// One line naming the file.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        std::fs::write(path, self.svg()?)
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    fn draw(
        &self,
        area: DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let positive = |v: &&f64| v.is_finite() && **v > 0.0;
        let values = || self.series.iter().flat_map(|s| s.values.iter().flatten()).filter(positive);
        let low = values().copied().fold(f64::INFINITY, f64::min);
        let high = values().copied().fold(0.0, f64::max);
        if high == 0.0 {
            return Err("no arm has a figure".into());
        }
        let last = self.points.len().saturating_sub(1).max(1) as i32;
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(16)
            .margin_right(40)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0..last, (low / 1.5..high * 1.5).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_labels(self.points.len())
            .x_label_formatter(&|x| {
                usize::try_from(*x)
                    .ok()
                    .and_then(|x| self.points.get(x))
                    .cloned()
                    .unwrap_or_default()
            })
            .y_label_formatter(&|y| crate::table::us_text(*y))
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .draw()?;
        for (i, series) in self.series.iter().enumerate() {
            let color = COLORS[i % COLORS.len()].to_rgba();
            let points = series.values.iter().enumerate();
            let points: Vec<(i32, f64)> = points
                .filter_map(|(x, y)| Some((x as i32, (*y).filter(|y| positive(&y))?)))
                .collect();
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
                .label(&series.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: Vec<Option<f64>>) -> Chart {
        Chart {
            title: "Round trip by size".into(),
            x_label: "bytes".into(),
            y_label: "p50, us".into(),
            points: vec!["1 B".into(), "64 B".into(), "1 KiB".into()],
            series: vec![Series { name: "kernel-udp-busy-poll".into(), values }],
        }
    }

    #[test]
    fn a_chart_names_its_lines_and_points() {
        let svg = chart(vec![Some(7.2), None, Some(1e3)]).svg().expect("drawn");
        for text in ["<svg", "Round trip by size", "kernel-udp-busy-poll", "64 B", "p50, us"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn nothing_to_draw_is_one_line() {
        for values in [vec![], vec![None; 3], vec![Some(0.0)], vec![Some(f64::NAN)]] {
            let error = chart(values).svg().expect_err("nothing to draw");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
