//! Entry points for `fuzz/`: the parsers of the protocol between a launcher and its agents.

use crate::launch::hosts::agent_protocol::{
    AgentFrame, put_output, put_report, read_frame, read_greeting, read_order, write_order,
};

/// Parses the bytes as an agent's output, before and behind its greeting, and as its input. Parsed
/// messages are written and parsed again.
pub(crate) fn agents(data: &[u8]) {
    let mut from = data;
    if read_greeting(&mut from).is_ok() {
        frames(from);
    }
    frames(data);
    let mut from = data;
    while let Ok(Some(order)) = read_order(&mut from) {
        let mut line = Vec::new();
        assert!(write_order(&mut line, &order).is_ok());
        let again = read_order(&mut &line[..]);
        assert!(matches!(again, Ok(Some(_))), "an order that was read can be read again");
    }
}

fn frames(mut from: &[u8]) {
    while let Ok(frame) = read_frame(&mut from) {
        let mut bytes = Vec::new();
        match &frame {
            AgentFrame::Report(report) => put_report(report, &mut bytes),
            AgentFrame::Output(process, stream, text) => {
                put_output(*process, *stream, text, &mut bytes);
            }
        }
        match (frame, read_frame(&mut &bytes[..])) {
            (AgentFrame::Output(.., one), Ok(AgentFrame::Output(.., other))) => {
                assert_eq!(one, other);
            }
            (AgentFrame::Report(_), Ok(AgentFrame::Report(_))) => {}
            (frame, again) => panic!("{frame:?} became {again:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn frames_and_orders_that_were_found_are_read() {
        crate::fuzz::tests::replay("agents.tar", super::agents);
    }
}
