//! The routing port: one suite on both of its adapters, and sessions that are cut, refused,
//! misused, and lose their routers.

mod kit;
mod sessions;
mod suite;

macro_rules! on_both_adapters {
    ($($test:ident)*) => {
        mod in_process {
            $(#[tokio::test] async fn $test() { super::suite::$test(&super::kit::Rig::in_process()).await })*
        }
        mod over_a_session {
            $(#[tokio::test] async fn $test() { super::suite::$test(&super::kit::Rig::over_a_session().await).await })*
        }
    };
}

on_both_adapters! {
    a_decision_is_booked_until_its_closing_report
    every_way_of_ending_releases_the_booking
    a_prompt_goes_where_its_beginning_is_cached
    reports_of_unknown_leases_change_nothing
    excluded_ranks_are_not_chosen
    a_failed_attempt_counts_no_more_when_the_next_is_asked
    a_model_that_nobody_has_is_told_from_one_that_is_not_ready
    a_route_waits_for_a_backend_as_long_as_it_may
    a_route_that_nobody_waits_for_any_more_books_nothing
    the_fleet_is_watched
    many_routes_at_once_are_all_answered
}
