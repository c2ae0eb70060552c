//! What clients do.

use super::*;

pub(super) fn cells() -> Vec<Cell> {
    slow_readers().into_iter().chain(leaving()).collect()
}

fn slow_readers() -> Vec<Cell> {
    use Fault::SlowReader as Slow;
    fn much(d: &Dialect) -> Vec<Step> {
        let long = long(d.token);
        events(&[d.opening, &long, &long, &long, &long, d.ending])
    }
    fn large(d: &Dialect) -> Vec<Step> {
        vec![answer("200 OK", JSON, &long(d.answer).repeat(4))]
    }
    let slowly = |cell: Cell| Cell { client: Conduct::ReadsSlowly, ..cell };
    let stops = |cell: Cell| Cell { client: Conduct::Stops, ..cell };
    let left = End::Left(Outcome::Cancelled);
    vec![
        slowly(stream(Slow, "that reads on", much, OK)),
        slowly(whole(Slow, "that reads on", large, OK)),
        stops(stream(Slow, "that stops", much, left)),
        stops(whole(Slow, "that stops", large, left)),
    ]
}

fn leaving() -> Vec<Cell> {
    type Phase = (bool, &'static str, When, fn(&Dialect) -> Vec<Step>, Outcome);
    let token = When::Heard(|d| d.token);
    let last = When::Heard(|d| d.last);
    let in_document = When::Heard(|d| &d.answer[..d.answer.len() / 4]);
    let phases: [Phase; 10] = [
        (true, "while it sends", When::Sending, |d| d.good(true), Outcome::Cancelled),
        (true, "before the head", When::Asked, |_| vec![Step::AwaitClose], Outcome::Cancelled),
        (
            true,
            "while the opening is held",
            When::Asked,
            |d| vec![sse(), event(d.opening), Step::AwaitClose],
            Outcome::Cancelled,
        ),
        (
            true,
            "after a token",
            token,
            |d| vec![sse(), event(d.opening), event(d.token), Step::AwaitClose],
            Outcome::Cancelled,
        ),
        (
            true,
            "in a long event",
            token,
            |d| {
                let long = long(d.token);
                events(&[d.opening, d.token, &long, &long, &long, &long, d.ending])
            },
            Outcome::Cancelled,
        ),
        (
            true,
            "after the end marker",
            last,
            |d| vec![sse(), event(d.opening), event(d.token), event(d.ending), Step::AwaitClose],
            Outcome::Ok,
        ),
        (false, "while it sends", When::Sending, |d| d.good(false), Outcome::Cancelled),
        (false, "before the head", When::Asked, |_| vec![Step::AwaitClose], Outcome::Cancelled),
        (
            false,
            "after the head",
            When::Asked,
            |d| vec![begun(d, 0), Step::AwaitClose],
            Outcome::Cancelled,
        ),
        (
            false,
            "in the document",
            in_document,
            |d| vec![begun(d, half(d)), Step::AwaitClose],
            Outcome::Cancelled,
        ),
    ];
    let cells = phases.into_iter().flat_map(|(stream, name, when, script, outcome)| {
        [("", false), (", by a reset", true)].map(|(how, reset)| Cell {
            fault: Fault::ClientLeaves,
            name: format!("{name}{how}"),
            stream,
            engine: Act::Does(script),
            client: Conduct::Leaves { when, reset },
            end: End::Left(outcome),
        })
    });
    cells.collect()
}
