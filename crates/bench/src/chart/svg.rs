//! A small writer of SVG. Each shape has its colour twice: as an attribute, which every program draws, and as a class,
//! by which a page gives it another one in the dark.

use std::fmt::Write;

/// Left and right of everything.
pub const MARGIN: f64 = 16.0;

/// What is drawn in one colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ink {
    Text,
    Quiet,
    Grid,
    Surface,
    Kernel,
    Stack,
    Bare,
    Limit,
    /// One of several, in their order.
    Nth(usize),
}

/// Colours on white and on black. Those that tell series apart are also different for colour-blind readers where they
/// are neighbours, and dark enough for text.
const NTH: [(&str, &str); 12] = [
    ("#1f6fb4", "#5aa9e6"),
    ("#c8501e", "#f0824f"),
    ("#2a8a62", "#4fc08d"),
    ("#9b4dab", "#cf8fdc"),
    ("#a87400", "#e0b040"),
    ("#1797a6", "#55cbd9"),
    ("#c2335f", "#f0749a"),
    ("#6b5b3e", "#b9a47c"),
    ("#4b56c4", "#949df2"),
    ("#5f7a12", "#a9c84a"),
    ("#51606e", "#b4c2d0"),
    ("#c433a0", "#ff8fdb"),
];

impl Ink {
    fn colours(self) -> (&'static str, &'static str) {
        match self {
            Self::Text => ("#1b1f24", "#e8eaed"),
            Self::Quiet => ("#5b636e", "#a3abb5"),
            Self::Grid => ("#e3e6ea", "#30363d"),
            Self::Surface => ("#ffffff", "#14171b"),
            Self::Kernel => NTH[0],
            Self::Stack => NTH[1],
            Self::Bare => NTH[2],
            Self::Limit => ("#7a7f87", "#9aa1aa"),
            Self::Nth(n) => NTH[n % NTH.len()],
        }
    }

    fn light(self) -> &'static str {
        self.colours().0
    }

    fn class(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Quiet => "quiet".to_owned(),
            Self::Grid => "grid".to_owned(),
            Self::Surface => "surface".to_owned(),
            Self::Limit => "limit".to_owned(),
            Self::Kernel => Self::Nth(0).class(),
            Self::Stack => Self::Nth(1).class(),
            Self::Bare => Self::Nth(2).class(),
            Self::Nth(n) => format!("n{}", n % NTH.len()),
        }
    }
}

/// The rules of a page for dark screens.
pub fn dark_rules() -> String {
    let named = [Ink::Text, Ink::Quiet, Ink::Grid, Ink::Surface, Ink::Limit];
    let all = named.into_iter().chain((0..NTH.len()).map(Ink::Nth));
    let rule = |ink: Ink| {
        let (class, (_, dark)) = (ink.class(), ink.colours());
        format!("svg .f-{class}{{fill:{dark}}}svg .s-{class}{{stroke:{dark}}}")
    };
    all.map(rule).collect()
}

/// How a text is set.
#[derive(Debug, Clone, Copy)]
pub struct Type {
    /// In pixels.
    pub size: f64,
    /// Bold.
    pub bold: bool,
    /// Of equal width, for names.
    pub mono: bool,
    /// Its colour.
    pub ink: Ink,
    /// `start`, `middle` or `end`.
    pub anchor: &'static str,
}

impl Type {
    /// Plain text.
    pub const PLAIN: Self =
        Self { size: 12.0, bold: false, mono: false, ink: Ink::Text, anchor: "start" };
    /// Text that stays behind.
    pub const QUIET: Self = Self { ink: Ink::Quiet, ..Self::PLAIN };
    /// Names of arms.
    pub const NAME: Self = Self { mono: true, ..Self::PLAIN };

    /// The width of a text, at most: that of DejaVu Sans, the widest of the fonts.
    pub fn width(self, text: &str) -> f64 {
        let each = |c: char| match c {
            _ if self.mono => 0.605,
            ' ' | '\u{a0}' | '.' | ',' | ':' | ';' | '\u{b7}' | 'i' | 'l' | 'j' | '\'' | '|' => {
                0.34
            }
            '-' | '(' | ')' | '[' | ']' | 'f' | 't' | 'r' | '/' => 0.42,
            'm' | 'w' | 'M' | 'W' | '%' | '@' | '\u{2026}' => 1.0,
            c if c.is_uppercase() => 0.74,
            _ => 0.64,
        };
        let bold = if self.bold && !self.mono { 1.12 } else { 1.0 };
        bold * self.size * text.chars().map(each).sum::<f64>()
    }

    /// The beginning of a text that fits.
    pub fn fit(self, text: &str, width: f64) -> String {
        if self.width(text) <= width {
            return text.to_owned();
        }
        let mut kept = String::new();
        for c in text.chars() {
            kept.push(c);
            if self.width(&kept) + self.width("\u{2026}") > width {
                kept.pop();
                break;
            }
        }
        kept.trim_end().to_owned() + "\u{2026}"
    }

    /// The text in lines that fit, broken between words, but not at no-break spaces.
    pub fn wrap(self, text: &str, width: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            match lines.last_mut() {
                Some(line) if self.width(line) + self.width(" ") + self.width(word) <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(self.fit(word, width)),
            }
        }
        lines
    }
}

/// A picture that is being drawn.
#[derive(Debug, Default)]
pub struct Canvas {
    body: String,
}

/// A coordinate with one decimal.
fn at(x: f64) -> String {
    let x = if x.is_finite() { x.clamp(-1e6, 1e6) } else { 0.0 };
    let text = format!("{x:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// A text for XML and HTML. Control characters have no place in either.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

impl Canvas {
    /// A filled rectangle; `opacity` 0 to 1.
    pub fn rect(&mut self, [x, y, w, h]: [f64; 4], ink: Ink, opacity: f64) {
        let faint =
            if opacity < 1.0 { format!(" fill-opacity=\"{opacity}\"") } else { String::new() };
        let _ = writeln!(
            self.body,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"f-{}\" fill=\"{}\"{faint}/>",
            at(x),
            at(y),
            at(w.max(0.0)),
            at(h.max(0.0)),
            ink.class(),
            ink.light()
        );
    }

    /// A line through points.
    pub fn line(&mut self, points: &[(f64, f64)], ink: Ink, width: f64) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", at(*x), at(*y))).collect();
        let _ = writeln!(
            self.body,
            "<polyline points=\"{}\" class=\"s-{}\" stroke=\"{}\" stroke-width=\"{width}\" fill=\"none\" \
             stroke-linejoin=\"round\" stroke-linecap=\"round\"/>",
            points.join(" "),
            ink.class(),
            ink.light()
        );
    }

    /// A point.
    pub fn dot(&mut self, (x, y): (f64, f64), ink: Ink) {
        let _ = writeln!(
            self.body,
            "<circle cx=\"{}\" cy=\"{}\" r=\"3.2\" class=\"f-{}\" fill=\"{}\"/>",
            at(x),
            at(y),
            ink.class(),
            ink.light()
        );
    }

    /// A text whose base line begins, has its middle or ends at a point.
    pub fn text(&mut self, (x, y): (f64, f64), kind: Type, text: &str) {
        let mono = if kind.mono { " class=\"mono f-" } else { " class=\"f-" }.to_owned()
            + &kind.ink.class()
            + "\"";
        let family = if kind.mono { format!(" font-family=\"{MONO}\"") } else { String::new() };
        let bold = if kind.bold { " font-weight=\"600\"" } else { "" };
        let anchor = match kind.anchor {
            "start" => String::new(),
            other => format!(" text-anchor=\"{other}\""),
        };
        let _ = writeln!(
            self.body,
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\"{mono} fill=\"{}\"{family}{bold}{anchor}>{}</text>",
            at(x),
            at(y),
            kind.size,
            kind.ink.light(),
            escape(text)
        );
    }

    /// The picture. Alone it has a white ground and a margin; in a page it has the page's.
    pub fn finish(self, [width, height]: [f64; 2], title: &str, alone: bool) -> String {
        let (w, h) = (at(width), at(height));
        let (size, ground) = match alone {
            true => (
                format!(" xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\""),
                format!("<rect width=\"{w}\" height=\"{h}\" fill=\"{}\"/>\n", Ink::Surface.light()),
            ),
            false => Default::default(),
        };
        let (left, w) = if alone { (at(0.0), w) } else { (at(MARGIN), at(width - 2.0 * MARGIN)) };
        format!(
            "<svg{size} viewBox=\"{left} 0 {w} {h}\" role=\"img\" aria-label=\"{}\" font-family=\"{SANS}\">\n\
             {ground}{}</svg>\n",
            escape(title),
            self.body
        )
    }
}

/// Fonts that are there without a network.
pub const SANS: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', Helvetica, Arial, sans-serif";
/// The same, of equal width.
pub const MONO: &str = "ui-monospace, 'SF Mono', Menlo, Consolas, 'Noto Sans Mono', 'Liberation Mono', 'DejaVu Sans Mono', monospace";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_leave_their_place() {
        assert_eq!(escape("<a b=\"c\">&'\u{1b}\n"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\u{fffd} ");
    }

    #[test]
    fn texts_fit_where_they_are_to_stand() {
        let kind = Type::PLAIN;
        assert_eq!(kind.fit("short", 100.0), "short");
        for width in [0.0, 7.0, 40.0, 100.0] {
            let text = kind.fit("a text that is far too long for this place", width);
            assert!(kind.width(&text) <= width.max(kind.width("\u{2026}")), "{text}");
            for line in kind.wrap("some words and a-very-long-word-among-them", width) {
                assert!(kind.width(&line) <= width.max(kind.width("\u{2026}")), "{line}");
            }
        }
        assert_eq!(kind.wrap("one two three", kind.width("one two t")), ["one two", "three"]);
    }

    #[test]
    fn coordinates_are_finite() {
        assert_eq!([1.0, 2.25, f64::NAN, f64::INFINITY].map(at), ["1", "2.2", "0", "0"]);
    }
}
