//! `busypoll report`: text and pages of runs that bench has written, and files that are none.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use busypoll_lab::needs;
use support::*;

/// Runs of bench, one of each kind.
const RUNS: [&str; 9] =
    ["before", "after", "size", "rate", "coalesce", "open", "stream", "crr", "stages"];

fn run(name: &str) -> String {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../bench/tests/data/{name}.json"));
    file.canonicalize().unwrap().to_str().unwrap().to_owned()
}

fn page(names: &[&str]) -> String {
    let runs: Vec<String> = names.iter().map(|name| run(name)).collect();
    let mut arguments = vec!["report", "--html", "-"];
    arguments.extend(runs.iter().map(String::as_str));
    let output = run_locally(&arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("busypoll-report-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_is_shown_as_bench_showed_it() {
    let output = run_locally(&["report", &run("before")]);
    let text = String::from_utf8(output.stdout).unwrap();
    for wanted in ["kernel-udp-busy-poll", "x best blocking", "busy-polled", "Busy polling ("] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let both = run_locally(&["report", &run("before"), &run("after")]);
    let both = String::from_utf8(both.stdout).unwrap();
    assert!(both.contains("== before") && both.contains("== after"), "{both}");
    let table = both.split("side by side").nth(1).unwrap();
    assert!(table.contains("last / first") && table.contains("kernel-udp-busy-poll"), "{table}");
}

#[test]
fn a_broken_or_foreign_file_is_one_line() {
    let folder = Folder::new("broken");
    let whole = fs::read_to_string(run("before")).unwrap();
    let half = &whole[..whole.len() / 2];
    for (text, named) in [
        ("", "not JSON"),
        ("\0\u{1b}[31m", "not JSON"),
        (half, "not JSON"),
        ("{\"a\": 1}", "no field \"schema\""),
        ("[]", "no field \"schema\""),
        ("{\"schema\": \"tune-plan\", \"schema_version\": 1}", "'tune-plan'"),
        ("{\"schema\": \"bench-rr\", \"schema_version\": 9}", "version 9"),
        ("{\"schema\": \"bench-rr\", \"schema_version\": 1, \"arms\": 3}", "not a whole report"),
    ] {
        let file = folder.file("foreign.json", text);
        fails_with(&run_locally(&["report", &file]), &[&file, named]);
        // Nothing is written if one of several is not whole.
        let html = folder.0.join("page.html");
        let html = html.to_str().unwrap();
        fails_with(
            &run_locally(&["report", &run("before"), &file, "--html", html]),
            &[&file, named],
        );
        assert!(!Path::new(html).exists());
    }
    fails_with(&run_locally(&["report", "/nowhere.json"]), &["/nowhere.json"]);
    fails_with(&run_locally(&["report", "/proc"]), &["/proc"]);
    fails_with(&run_locally(&["report", "/dev/zero"]), &["/dev/zero", "larger"]);
    fails_with(&run_locally(&["report"]), &["RUN.json"]);
    let run = run("before");
    fails_with(
        &run_locally(&["report", &run, "--html", "/nowhere/page.html"]),
        &["/nowhere/page.html"],
    );
}

/// Names in a file may be anything: they neither end an element nor begin one, nor ask for a file.
#[test]
fn texts_of_a_foreign_file_stay_texts() {
    let folder = Folder::new("names");
    let whole = fs::read_to_string(run("before")).unwrap();
    let evil = "</style></svg><script src='http://192.0.2.1/x'></script>\\u0000\\u001b[31m";
    let text =
        whole.replace("kernel-udp-busy-poll", evil).replace("\"0.1.0\"", &format!("\"{evil}\""));
    let file = folder.file("evil.json", &text);
    let output = run_locally(&["report", &file, "--html", "-"]);
    let html = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && html.contains("&lt;script"), "{html}");
    assert!(!html.contains("<script") && !html.contains('\0') && !html.contains('\x1b'));
    assert_eq!(html.matches("</style>").count(), 1);
}

#[test]
fn a_page_needs_nothing_else() {
    for name in RUNS {
        let html = page(&[name]);
        for tag in [
            "<script", "<link", "<img", "<iframe", "@import", "url(", " src=", " href=", "http:",
            "https:",
        ] {
            assert!(!html.contains(tag), "{name}: {tag}");
        }
        assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"), "{name}");
        for wanted in ["<blockquote>", "<svg ", "<table>", "The machine", "How it was measured"] {
            assert!(html.contains(wanted), "{name}: {wanted}");
        }
    }
}

/// Every run alone, and all together.
fn pages() -> Vec<(String, String)> {
    let alone = RUNS.iter().map(|name| ((*name).to_owned(), page(&[name])));
    alone.chain([("all".to_owned(), page(&RUNS))]).collect()
}

/// What a browser says of a page in a frame of each width. `</` cannot stand in a script.
fn harness(pages: &[(String, String)]) -> String {
    let list = serde_json::to_string(pages).unwrap().replace("</", "<\\/");
    String::from(
        "<!doctype html><meta charset=utf-8><body><pre id=result></pre><script>const pages=",
    ) + &list
        + r#";
const out = [];
const check = (name, width, frame) => {
  const doc = frame.contentDocument, win = frame.contentWindow, root = doc.documentElement;
  const say = what => out.push(`${name} at ${width}: ${what}`);
  if (root.scrollWidth > width) say(`is ${root.scrollWidth} wide`);
  for (const entry of win.performance.getEntriesByType('resource')) say(`asks for ${entry.name}`);
  const shown = element => element.getClientRects().length > 0;
  const svgs = [...doc.querySelectorAll('svg')].filter(shown);
  if (svgs.length == 0) say('has no chart');
  for (const svg of svgs) {
    const all = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [text, box] of boxes) {
      if (box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1)
        say(`'${text}' leaves its chart`);
      if (box.height < 9.5) say(`'${text}' is ${box.height} high`);
    }
    for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
      const [[one, a], [other, b]] = [boxes[i], boxes[j]];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 4) say(`'${one}' covers '${other}'`);
    }
  }
  for (const cell of [...doc.querySelectorAll('td,th')].filter(shown)) {
    if (width <= 600 && cell.getBoundingClientRect().right > width) say(`'${cell.textContent}' is cut off`);
  }
  for (const wanted of ['The machine', 'How it was measured', 'Linux '])
    if (!doc.body.innerText.includes(wanted)) say(`does not say ${wanted}`);
  if (doc.querySelector('blockquote').innerText.length < 40) say('has no sentence');
};
(async () => {
  for (const [name, html] of pages) for (const width of [390, 820, 1280]) {
    const frame = document.createElement('iframe');
    frame.style = `border:0;width:${width}px;height:900px`;
    const loaded = new Promise(done => frame.onload = done);
    frame.srcdoc = html;
    document.body.append(frame);
    await loaded;
    check(name, width, frame);
    frame.remove();
  }
  document.getElementById('result').textContent = `checked ${pages.length * 3}\n` + out.join('\n');
})();
</script>"#
}

#[test]
#[ignore = "long: a browser lays out ten pages at three widths"]
fn a_browser_shows_all_of_it_at_any_width() {
    needs!(program "chromium");
    let folder = Folder::new("browser");
    let harness = folder.file("harness.html", &harness(&pages()));
    let profile = format!("--user-data-dir={}", folder.0.join("profile").display());
    let url = format!("file://{harness}");
    let mut chromium = Command::new("chromium");
    chromium.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]);
    // Whatever a page asked for would fail, and be listed.
    chromium.args([
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--virtual-time-budget=60000",
        "--dump-dom",
    ]);
    let output = chromium.args([&profile, &url]).output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let result =
        dom.split("<pre id=\"result\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    assert_eq!(
        result.map(str::trim),
        Some(format!("checked {}", (RUNS.len() + 1) * 3).as_str()),
        "{output:?}"
    );
}
