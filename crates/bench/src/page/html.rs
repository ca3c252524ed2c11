//! Elements of a page, every text escaped.

use std::fmt::Write;

use crate::chart::svg::escape;

/// A part of a page.
#[derive(Debug, Default)]
pub struct Html(pub String);

impl Html {
    /// An element around a text.
    pub fn element(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.0, "<{name}>{}</{name}>", escape(text));
    }

    /// What the words of a table mean.
    pub fn legend(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p class=\"legend\">{}</p>", escape(text));
    }

    /// A list, unless it is empty.
    pub fn list(&mut self, title: &str, items: &[String]) {
        if items.is_empty() {
            return;
        }
        self.element("h3", title);
        self.0 += "<ul>\n";
        items.iter().for_each(|item| self.element("li", item));
        self.0 += "</ul>\n";
    }

    /// Terms and what they are.
    pub fn terms(&mut self, terms: &[(&str, String)]) {
        self.0 += "<dl>\n";
        for (term, what) in terms.iter().filter(|(_, what)| !what.is_empty()) {
            let _ = writeln!(self.0, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(what));
        }
        self.0 += "</dl>\n";
    }

    /// A table; on a telephone each row is a card.
    pub fn table(&mut self, table: &Table) {
        if table.rows.is_empty() {
            return;
        }
        self.0 += "<div class=\"fits\"><table>\n<thead><tr>";
        for column in &table.columns {
            let _ = write!(self.0, "<th{}>{}</th>", column.class(), escape(&column.title));
        }
        self.0 += "</tr></thead>\n<tbody>\n";
        for row in &table.rows {
            self.0 += if row.invalid { "<tr class=\"invalid\">" } else { "<tr>" };
            for (column, cell) in table.columns.iter().zip(&row.cells) {
                let _ = write!(
                    self.0,
                    "<td{} data-of=\"{}\">{}</td>",
                    column.class(),
                    escape(&column.title),
                    cell.html()
                );
            }
            self.0 += "</tr>\n";
        }
        self.0 += "</tbody></table></div>\n";
    }
}

/// A table.
#[derive(Debug, Default)]
pub struct Table {
    /// The first one is for names.
    pub columns: Vec<Column>,
    /// From top to bottom.
    pub rows: Vec<Row>,
}

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Above it.
    pub title: String,
    /// Whether it has words instead of figures.
    pub words: bool,
}

impl Column {
    fn class(&self) -> &'static str {
        if self.words { " class=\"words\"" } else { "" }
    }
}

/// Columns of figures.
pub fn columns(titles: &[&str]) -> Vec<Column> {
    titles.iter().map(|title| Column { title: (*title).to_owned(), words: false }).collect()
}

/// A row.
#[derive(Debug, Default)]
pub struct Row {
    /// One for each column.
    pub cells: Vec<Cell>,
    /// Whether its figures say nothing about what its name says.
    pub invalid: bool,
}

/// A cell.
#[derive(Debug, Default)]
pub struct Cell {
    text: String,
    interval: Option<String>,
}

impl Cell {
    /// A figure or a text.
    pub fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), interval: None }
    }

    /// A figure with its interval, each made a text by `show`.
    pub fn with(figure: f64, interval: Option<[f64; 2]>, show: fn(f64) -> String) -> Self {
        let interval = interval.map(|[low, high]| format!("[{}\u{2013}{}]", show(low), show(high)));
        Self { text: show(figure), interval }
    }

    fn html(&self) -> String {
        let text = escape(&self.text);
        match &self.interval {
            Some(interval) => format!("<span>{text} <small>{}</small></span>", escape(interval)),
            // One element, for a card's two sides.
            None if text.is_empty() => text,
            None => format!("<span>{text}</span>"),
        }
    }
}
