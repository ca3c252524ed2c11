//! What the user looks at: which rows, in which order, filtered by what, paused or not. Keys change it.

use crate::keys::Key;
use crate::table::View;

/// The longest filter.
const FILTER: usize = 40;

/// The state of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) view: View,
    /// The column that sorts, by view.
    orders: [usize; 3],
    reversed: [bool; 3],
    pub(crate) filter: String,
    /// Keys go to the filter.
    pub(crate) editing: bool,
    pub(crate) paused: bool,
    /// The row that is marked, in the present order.
    pub(crate) selected: usize,
    pub(crate) help: bool,
}

/// What a key asks for beyond the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    Quit,
    Suspend,
    Redraw,
}

impl State {
    /// The rows of `view`, sorted by what matters most.
    pub(crate) fn new(view: View, filter: String) -> Self {
        State {
            view,
            orders: View::ALL.map(View::first_order),
            reversed: [false; 3],
            filter,
            editing: false,
            paused: false,
            selected: 0,
            help: false,
        }
    }

    fn at(&self) -> usize {
        View::ALL.iter().position(|view| *view == self.view).unwrap_or(0)
    }

    /// The column that sorts.
    pub(crate) fn order(&self) -> usize {
        self.orders[self.at()]
    }

    /// Sorts by the column of this title, if the view has it.
    pub(crate) fn order_by(&mut self, title: &str) -> bool {
        let same = |column: &str| {
            let short = |text: &str| text.trim_end_matches(['%', 's', '/']).to_lowercase();
            short(column) == short(title)
        };
        let found = self.view.columns().iter().position(|column| same(column.title));
        let at = self.at();
        found.inspect(|found| self.orders[at] = *found).is_some()
    }

    /// Whether the order is the reverse.
    pub(crate) fn is_reversed(&self) -> bool {
        self.reversed[self.at()]
    }

    /// Changes what the key asks for. `rows` are there now, `page` of them fit.
    pub(crate) fn press(&mut self, key: Key, rows: usize, page: usize) -> Wish {
        match key {
            Key::Interrupt => return Wish::Quit,
            Key::Suspend => return Wish::Suspend,
            Key::Redraw => return Wish::Redraw,
            _ if self.editing => self.edit(key),
            Key::Char('q') => return Wish::Quit,
            Key::Char(digit @ '1'..='3') => {
                self.show(View::ALL[digit as usize - '1' as usize]);
            }
            Key::Tab => self.show(View::ALL[(self.at() + 1) % 3]),
            Key::BackTab => self.show(View::ALL[(self.at() + 2) % 3]),
            Key::Char('s' | '>') => self.next_order(1),
            Key::Char('S' | '<') => self.next_order(self.view.columns().len() - 1),
            Key::Char('r') => {
                let at = self.at();
                self.reversed[at] = !self.reversed[at];
            }
            Key::Char('/' | 'f') => self.editing = true,
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Char('?' | 'h') => self.help = !self.help,
            Key::Escape if self.help => self.help = false,
            Key::Escape => self.filter.clear(),
            Key::Up | Key::Char('k') => self.selected = self.selected.saturating_sub(1),
            Key::Down | Key::Char('j') => self.selected += 1,
            Key::PageUp => self.selected = self.selected.saturating_sub(page),
            Key::PageDown => self.selected += page,
            Key::Home => self.selected = 0,
            Key::End => self.selected = rows,
            Key::Char(_) | Key::Enter | Key::Backspace => {}
        }
        self.selected = self.selected.min(rows.saturating_sub(1));
        Wish::Nothing
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Char(char) if self.filter.chars().count() < FILTER => self.filter.push(char),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => self.editing = false,
            Key::Escape => {
                self.editing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.selected = 0;
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.selected = 0;
    }

    fn next_order(&mut self, by: usize) {
        let at = self.at();
        self.orders[at] = (self.orders[at] + by) % self.view.columns().len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(state: &mut State, keys: &[Key]) -> Wish {
        keys.iter().fold(Wish::Nothing, |_, key| state.press(*key, 5, 3))
    }

    #[test]
    fn keys_move_sort_filter_and_pause() {
        let mut state = State::new(View::Process, String::new());
        press(&mut state, &[Key::End]);
        assert_eq!(state.selected, 4);
        press(&mut state, &[Key::Down, Key::PageUp, Key::Up]);
        assert_eq!(state.selected, 0);
        assert_eq!(state.view.columns()[state.order()].title, "PKT/s");
        press(&mut state, &[Key::Char('s'), Key::Char('r')]);
        assert_eq!(
            (state.view.columns()[state.order()].title, state.is_reversed()),
            ("POLL%", true)
        );
        press(&mut state, &[Key::Tab]);
        assert_eq!((state.view, state.is_reversed()), (View::Thread, false));
        press(&mut state, &[Key::Tab, Key::BackTab, Key::BackTab]);
        assert_eq!((state.view, state.is_reversed()), (View::Process, true));
        press(&mut state, &[Key::Char('/'), Key::Char('q'), Key::Char('p'), Key::Backspace]);
        assert_eq!((state.filter.as_str(), state.editing, state.paused), ("q", true, false));
        press(&mut state, &[Key::Enter, Key::Char('p')]);
        assert!(state.paused && !state.editing && state.filter == "q");
        press(&mut state, &[Key::Escape]);
        assert_eq!(state.filter, "");
        assert_eq!(press(&mut state, &[Key::Char('q')]), Wish::Quit);
    }

    /// Ctrl-C and Ctrl-Z work while a filter is typed.
    #[test]
    fn no_state_keeps_the_user_in() {
        let mut state = State::new(View::Napi, String::new());
        press(&mut state, &[Key::Char('/')]);
        assert_eq!(press(&mut state, &[Key::Interrupt]), Wish::Quit);
        assert_eq!(press(&mut state, &[Key::Suspend]), Wish::Suspend);
        press(&mut state, &[Key::Char('x'); FILTER + 10]);
        assert_eq!(state.filter.len(), FILTER);
    }

    #[test]
    fn a_column_is_named_as_it_is_shown_or_shorter() {
        let mut state = State::new(View::Process, String::new());
        for name in ["VAIN%", "vain", "pkt/s", "PKT"] {
            assert!(state.order_by(name), "{name}");
        }
        assert_eq!(state.order(), View::Process.first_order());
        assert!(!state.order_by("nothing"));
    }
}
