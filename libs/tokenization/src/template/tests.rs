use std::collections::BTreeMap;

use super::*;

fn render(source: &str) -> Result<String, RenderError> {
    let named = vec![("default".to_owned(), source.to_owned())];
    let templates = Templates::compile(named).map_err(RenderError::BadTemplate)?;
    templates.choose(None, false)?.render(context())
}

fn render_own(source: &str) -> Result<String, RenderError> {
    let templates = Templates::compile(Vec::new()).map_err(RenderError::BadTemplate)?;
    templates.choose(Some(source), false)?.render(context())
}

fn context() -> Value {
    Value::from(BTreeMap::from([("word", Value::from("x")), ("list", Value::from(vec![1, 2]))]))
}

#[test]
fn generation_tags_print_what_they_hold() {
    let source = "a\n{%- generation -%}\n b {{ word }}\n{%- endgeneration %}\nc{% generation %}{% endgeneration %}";
    assert_eq!(render(source).as_deref(), Ok("ab xc"));
    assert_eq!(
        python::rewrite_generation_tags("{% if generation %}{{ '{%' }}"),
        "{% if generation %}{{ '{%' }}"
    );
}

#[test]
fn a_template_can_refuse_a_request() {
    let error = render("{{ raise_exception('no such role: ' ~ word) }}").unwrap_err();
    assert!(matches!(&error, RenderError::Template(m) if m.contains("no such role: x")), "{error}");
}

#[test]
fn the_date_is_todays_and_a_bad_format_is_an_error() {
    let year = render("{{ strftime_now('%Y') }}").unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2024);
    assert!(matches!(render("{{ strftime_now('%!') }}"), Err(RenderError::Template(_))));
}

#[test]
fn json_of_what_is_not_json_is_an_error() {
    for source in
        ["{{ nothing | tojson }}", "{{ range | tojson }}", "{{ list | tojson(colour=1) }}"]
    {
        assert!(matches!(render(source), Err(RenderError::Template(_))), "{source}");
    }
    assert_eq!(
        render("{{ '\u{1f600}é' | tojson(ensure_ascii=true) }}").unwrap(),
        r#""\ud83d\ude00\u00e9""#
    );
}

#[test]
fn endless_templates_end() {
    let loops = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}\
                 {% set d = a * b %}{% endfor %}{% endfor %}{% endfor %}";
    let doubling = "{% set ns = namespace(s='0123456789abcdef') %}{% for i in range(60) %}\
                    {% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";
    let recursion = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    for source in [loops, doubling, "{{ 'x' * 999999999 }}"] {
        assert_eq!(render_own(source), Err(RenderError::TooMuch), "{source}");
    }
    assert!(render_own(recursion).is_err());
    let long = format!("{}{{{{ word }}}}", " ".repeat(REQUEST_SOURCE_BYTES));
    assert!(matches!(render_own(&long), Err(RenderError::BadTemplate(_))));
    assert!(matches!(render_own("{% if %}"), Err(RenderError::BadTemplate(_))));
}

#[test]
fn a_model_without_a_template_takes_only_the_requests_own() {
    assert_eq!(render_own("{{ word }}").as_deref(), Ok("x"));
    let none = Templates::compile(Vec::new()).unwrap();
    assert!(matches!(none.choose(None, true).map(|_| ()), Err(RenderError::NoTemplate)));
}
