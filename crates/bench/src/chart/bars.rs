//! Horizontal bars, one for each arm, labelled in place.

use super::frame::{Heading, is_narrow, tick_text, ticks};
use super::svg::{Canvas, Ink, MARGIN, Type};

/// A chart of bars.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bars {
    /// Above it.
    pub heading: Heading,
    /// Under the axis.
    pub unit: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bar {
    /// A line above it, where a group begins.
    pub group: Option<String>,
    /// Left of it.
    pub name: String,
    /// Its parts, from 0 on.
    pub parts: Vec<Part>,
    /// The interval of the first part's end.
    pub interval: Option<[f64; 2]>,
    /// Right of it.
    pub figure: String,
    /// Behind the figure, and in place of a bar that has no parts.
    pub remark: String,
}

/// A part of a bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// Where it ends.
    pub to: f64,
    /// Its colour.
    pub ink: Ink,
    /// Light instead of solid.
    pub light: bool,
}

const LIGHT: f64 = 0.3;
const BAR: f64 = 14.0;
const GROUP: f64 = 24.0;
const FIGURE: Type = Type { bold: true, ..Type::PLAIN };

impl Bars {
    /// Whether there is a bar to draw.
    pub fn is_empty(&self) -> bool {
        self.bars.iter().all(|bar| bar.parts.is_empty())
    }

    /// Where the axis ends. What is much longer than most is cut off, or the others could not be told apart.
    fn top(&self) -> f64 {
        let ends = |bar: &Bar, light: bool| {
            let parts = bar.parts.iter().filter(|part| light || !part.light).map(|part| part.to);
            parts.filter(|to| to.is_finite()).fold(0.0, f64::max)
        };
        let mut solid: Vec<f64> = self.bars.iter().map(|bar| ends(bar, false)).collect();
        solid.sort_unstable_by(f64::total_cmp);
        let most = solid.get(solid.len() * 3 / 4).copied().unwrap_or(0.0);
        let longest = solid.last().copied().unwrap_or(0.0);
        let base = if longest > 5.0 * most && most > 0.0 { most } else { longest };
        let all = self.bars.iter().map(|bar| ends(bar, true)).fold(0.0, f64::max);
        if all > 3.0 * base && base > 0.0 { 2.5 * base } else { all }
    }

    /// The chart as SVG.
    pub fn svg(&self, width: f64, alone: bool) -> String {
        let mut canvas = Canvas::default();
        let mut y = self.heading.draw(&mut canvas, width, alone);
        let narrow = is_narrow(width);
        let widest = |text: fn(&Bar) -> f64| self.bars.iter().map(text).fold(0.0, f64::max);
        let room = width - 2.0 * MARGIN;
        let names = match narrow {
            true => 0.0,
            false => (widest(|bar| Type::NAME.width(&bar.name)) + 12.0).min(room * 0.4),
        };
        let labels = widest(|bar| match bar.parts.is_empty() {
            true => 0.0,
            false => FIGURE.width(&bar.figure) + 8.0 + Type::QUIET.width(&bar.remark),
        });
        let labels = (labels + 10.0).min(room * 0.55);
        let (left, right) = (MARGIN + names, width - MARGIN - labels);
        let top = self.top();
        let x = |value: f64| left + (value / top).clamp(0.0, 1.0) * (right - left);
        let row = if narrow { 40.0 } else { 24.0 };
        let groups = self.bars.iter().filter(|bar| bar.group.is_some()).count();
        let bottom = y + row * self.bars.len() as f64 + GROUP * groups as f64;
        let small = Type { size: 11.0, ..Type::QUIET };
        let mut end = 0.0;
        for tick in ticks(top, right - left) {
            canvas.line(&[(x(tick), y), (x(tick), bottom)], Ink::Grid, 1.0);
            let text = tick_text(tick);
            // Half of a figure in the middle of the edge would be cut off.
            let anchor = if x(tick) <= MARGIN { "start" } else { "middle" };
            canvas.text((x(tick), bottom + 15.0), Type { anchor, ..small }, &text);
            end = x(tick) + small.width(&text);
        }
        let unit_at = match end > width - MARGIN - small.width(&self.unit) {
            true => bottom + 30.0,
            false => bottom + 15.0,
        };
        canvas.text((width - MARGIN, unit_at), Type { anchor: "end", ..small }, &self.unit);
        for bar in &self.bars {
            if let Some(group) = &bar.group {
                y += GROUP;
                let kind = Type { bold: true, ..Type::NAME };
                canvas.text((MARGIN, y - 6.0), kind, &kind.fit(group, room));
            }
            let (name, base) = match narrow {
                true => ((MARGIN, y + 13.0), y + 19.0),
                false => ((MARGIN, y + 16.0), y + 5.0),
            };
            let name_room = if narrow { room } else { names - 12.0 };
            canvas.text(name, Type::NAME, &Type::NAME.fit(&bar.name, name_room));
            bar.draw(&mut canvas, base, x, [top, width - MARGIN]);
            y += row;
        }
        canvas.line(&[(left, bottom), (right, bottom)], Ink::Grid, 1.0);
        canvas.finish([width, unit_at + 11.0], &self.heading.title, alone)
    }
}

impl Bar {
    fn draw(&self, canvas: &mut Canvas, y: f64, x: impl Fn(f64) -> f64, [top, right]: [f64; 2]) {
        let mut from = 0.0;
        for part in self.parts.iter().filter(|part| part.to.is_finite() && part.to > 0.0) {
            let opacity = if part.light { LIGHT } else { 1.0 };
            // A bar too short to see still is there.
            let wide = (x(part.to) - x(from)).max(if from == 0.0 { 1.5 } else { 0.0 });
            canvas.rect([x(from), y, wide, BAR], part.ink, opacity);
            from = part.to.min(top).max(from);
            if part.to > top {
                for gap in [10.0, 5.0] {
                    let at = x(top) - gap;
                    canvas.line(
                        &[(at - 2.0, y + BAR + 1.0), (at + 2.0, y - 1.0)],
                        Ink::Surface,
                        2.0,
                    );
                }
            }
        }
        if let Some([low, high]) = self.interval
            && x(high) - x(low) > 3.0
        {
            let middle = y + BAR / 2.0;
            canvas.line(&[(x(low), middle), (x(high), middle)], Ink::Text, 1.0);
            for end in [low, high].into_iter().filter(|end| *end <= top) {
                canvas.line(&[(x(end), middle - 3.0), (x(end), middle + 3.0)], Ink::Text, 1.0);
            }
        }
        let end = self.interval.map_or(from, |[_, high]| high.max(from));
        let mut at = if self.parts.is_empty() { x(0.0) } else { x(end) + 8.0 };
        canvas.text((at, y + 11.0), FIGURE, &FIGURE.fit(&self.figure, right - at));
        if !self.figure.is_empty() {
            at += FIGURE.width(&self.figure) + 8.0;
        }
        if !self.remark.is_empty() {
            canvas.text((at, y + 11.0), Type::QUIET, &Type::QUIET.fit(&self.remark, right - at));
        }
    }
}
