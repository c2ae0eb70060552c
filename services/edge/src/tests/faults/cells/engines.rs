//! What engines do wrong.

use domain::ErrorCode;

use super::*;

pub(super) fn cells() -> Vec<Cell> {
    let groups = [before_content(), nothing_after_head(), cuts(), stalls(), odd_bytes()];
    groups.into_iter().flatten().collect()
}

fn before_content() -> Vec<Cell> {
    use Fault::{ConnectRefused, ErrorBeforeContent as Error};
    let refused = |cell: Cell| Cell { engine: Act::Refuses, ..cell };
    let server_error = End::Mended(&End::Passed(Outcome::UpstreamError));
    let full = End::Mended(&End::Passed(Outcome::BackPressure));
    let endless = End::Mended(&End::Cut(Outcome::UpstreamError));
    let failed = End::Mended(&End::Passed(Outcome::UpstreamErrorEvent));
    let mut cells = Vec::new();
    cells.extend(both(ConnectRefused, "nothing listens", |_| vec![], MENDED).map(refused));
    cells.extend(both(ConnectRefused, "reset before any byte", |_| vec![Step::Reset], MENDED));
    cells.extend(both(ConnectRefused, "ended before any byte", |_| vec![Step::EndWrites], MENDED));
    cells.extend(both(Error, "500", |_| vec![answer("500 No", "", "oops")], server_error));
    cells.extend(both(Error, "502", |_| vec![answer("502 No", "", "oops")], server_error));
    cells.extend(both(Error, "429", |_| vec![answer("429 No", "", "full")], full));
    cells.extend(both(Error, "503", |_| vec![answer("503 No", "retry-after: 7\r\n", "")], full));
    cells.extend(both(
        Error,
        "a 500 without an end",
        |_| {
            let head = "HTTP/1.1 500 No\r\ncontent-length: 9\r\n\r\noops";
            vec![Step::Send(head.into()), Step::AwaitClose]
        },
        endless,
    ));
    cells.push(stream(Error, "an error event alone", |d| events(&[d.failure]), failed));
    let after_opening = |d: &Dialect| events(&[d.opening, d.failure]);
    cells.push(stream(Error, "an error event in place of content", after_opening, failed));
    cells
}

fn nothing_after_head() -> Vec<Cell> {
    use Fault::NothingAfterHead as Nothing;
    vec![
        stream(Nothing, "a head and an end", |_| vec![sse(), Step::EndWrites], MENDED),
        stream(Nothing, "a head and a reset", |_| vec![sse(), breath(), Step::Reset], MENDED),
        stream(Nothing, "a stream of nothing", |_| events(&[]), MENDED),
        stream(
            Nothing,
            "an opening and an end",
            |d| vec![sse(), event(d.opening), Step::EndWrites],
            MENDED,
        ),
        stream(
            Nothing,
            "an opening and a reset",
            |d| vec![sse(), event(d.opening), breath(), Step::Reset],
            MENDED,
        ),
        stream(Nothing, "a stream of nothing but its opening", |d| events(&[d.opening]), MENDED),
        stream(
            Nothing,
            "comments and an end",
            |_| vec![sse(), event(": keep-alive\n\n"), Step::EndWrites],
            MENDED,
        ),
        whole(Nothing, "a head and an end", |d| vec![begun(d, 0), Step::EndWrites], MENDED),
        whole(Nothing, "a head and a reset", |d| vec![begun(d, 0), breath(), Step::Reset], MENDED),
        whole(Nothing, "an empty document", |_| vec![answer("200 OK", JSON, "")], OK),
    ]
}

fn cuts() -> Vec<Cell> {
    use Fault::Cut;
    let broken = End::Cut(Outcome::UpstreamEof);
    vec![
        stream(
            Cut,
            "in the first token",
            |d| vec![sse(), event(d.opening), half_token(d), Step::EndWrites],
            MENDED,
        ),
        stream(
            Cut,
            "after a token",
            |d| vec![sse(), event(d.opening), event(d.token), Step::EndWrites],
            TOLD,
        ),
        stream(
            Cut,
            "after a token by a reset",
            |d| vec![sse(), event(d.opening), event(d.token), breath(), Step::Reset],
            TOLD,
        ),
        stream(Cut, "after a token by an end of the body", |d| events(&[d.opening, d.token]), TOLD),
        stream(
            Cut,
            "in the second token",
            |d| vec![sse(), event(d.opening), event(d.token), half_token(d), Step::EndWrites],
            TOLD,
        ),
        stream(
            Cut,
            "in the second token by a reset",
            |d| {
                let head = [sse(), event(d.opening), event(d.token)];
                [head.to_vec(), vec![half_token(d), breath(), Step::Reset]].concat()
            },
            TOLD,
        ),
        stream(
            Cut,
            "in the second token by an end of the body",
            |d| {
                let begun = vec![sse(), event(d.opening), event(d.token), half_token(d)];
                [begun, vec![Step::Send(b"0\r\n\r\n".to_vec())]].concat()
            },
            TOLD,
        ),
        stream(
            Cut,
            "in a comment by an end of the body",
            |d| events(&[d.opening, d.token, ": keep"]),
            TOLD,
        ),
        stream(
            Cut,
            "in the name of an event by an end of the body",
            |d| events(&[d.opening, d.token, "event: mess"]),
            TOLD,
        ),
        stream(
            Cut,
            "after a token by the engine's own error",
            |d| events(&[d.opening, d.token, d.failure]),
            End::Passed(Outcome::UpstreamErrorEvent),
        ),
        stream(
            Cut,
            "after the end marker",
            |d| vec![sse(), event(d.opening), event(d.token), event(d.ending), Step::EndWrites],
            OK,
        ),
        whole(
            Cut,
            "in the document",
            |d| vec![begun(d, half(d)), breath(), Step::EndWrites],
            broken,
        ),
        whole(
            Cut,
            "in the document by a reset",
            |d| vec![begun(d, half(d)), breath(), Step::Reset],
            broken,
        ),
        whole(
            Cut,
            "in a document of chunks",
            |d| {
                let head = format!("HTTP/1.1 200 OK\r\n{JSON}transfer-encoding: chunked\r\n\r\n");
                let begun = part(&d.answer.as_bytes()[..half(d)]);
                vec![Step::Send(head.into()), begun, breath(), Step::EndWrites]
            },
            broken,
        ),
    ]
}

fn stalls() -> Vec<Cell> {
    use Fault::Stall;
    let told = End::Told(ErrorCode::Timeout, Outcome::Timeout);
    vec![
        stream(Stall, "before the head", |_| vec![Step::AwaitClose], End::Mended(&TIMED_OUT)),
        // The head and what came with it is let go after a while, and is then the answer.
        stream(Stall, "after the head", |_| vec![sse(), Step::AwaitClose], told),
        stream(
            Stall,
            "after the opening",
            |d| vec![sse(), event(d.opening), Step::AwaitClose],
            told,
        ),
        stream(
            Stall,
            "after a token",
            |d| vec![sse(), event(d.opening), event(d.token), Step::AwaitClose],
            told,
        ),
        stream(
            Stall,
            "in a token",
            |d| vec![sse(), event(d.opening), event(d.token), half_token(d), Step::AwaitClose],
            told,
        ),
        stream(
            Stall,
            "after the end marker",
            |d| vec![sse(), event(d.opening), event(d.token), event(d.ending), Step::AwaitClose],
            OK,
        ),
        // There is one limit over all attempts, and it is spent.
        whole(Stall, "before the head", |_| vec![Step::AwaitClose], TIMED_OUT),
        whole(
            Stall,
            "after the head",
            |d| vec![begun(d, 0), Step::AwaitClose],
            End::Cut(Outcome::Timeout),
        ),
        whole(
            Stall,
            "in the document",
            |d| vec![begun(d, half(d)), Step::AwaitClose],
            End::Cut(Outcome::Timeout),
        ),
    ]
}

fn odd_bytes() -> Vec<Cell> {
    use Fault::{BadJson, Giant, Split};
    vec![
        stream(
            BadJson,
            "before the first token",
            |d| events(&[d.opening, d.bad_json, d.token, d.ending]),
            OK,
        ),
        stream(
            BadJson,
            "after a token",
            |d| events(&[d.opening, d.token, d.bad_json, d.token, d.ending]),
            OK,
        ),
        stream(BadJson, "and nothing else", |d| events(&[d.bad_json]), MENDED),
        whole(BadJson, "document", |_| vec![answer("200 OK", JSON, "{\"id\":")], OK),
        stream(Split, "byte by byte", |d| bytewise(&d.good(true)), OK),
        stream(
            Split,
            "byte by byte with two bytes at each line's end",
            |d| {
                let lines = [d.opening, d.token, d.ending].map(|text| text.replace('\n', "\r\n"));
                bytewise(&events(&lines.each_ref().map(String::as_str)))
            },
            OK,
        ),
        whole(Split, "byte by byte", |d| bytewise(&d.good(false)), OK),
        stream(Giant, "event", |d| events(&[d.opening, &long(d.token), d.token, d.ending]), OK),
        stream(
            Giant,
            "event that is cut",
            |d| {
                let long = long(d.token);
                vec![sse(), event(d.opening), part(&long.as_bytes()[..3 << 20]), Step::EndWrites]
            },
            TOLD,
        ),
        whole(Giant, "document", |d| vec![answer("200 OK", JSON, &long(d.answer))], OK),
    ]
}
