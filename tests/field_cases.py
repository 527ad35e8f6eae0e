"""Cases that operators of systems like this one have reported, each with the tests that prove what happens here.

A path is of this folder; a test of several parameters is named once.
"""

from __future__ import annotations

CASES: dict[str, tuple[str, ...]] = {
    "worker killed in the middle, and one of another host name takes over within the lease": (
        "faults/test_ingest_survives.py::test_ingest_survives_sigkill_of_the_whole_worker_when_another_takes_over",
        "workflow/test_delivery.py::test_claim_that_takes_over_an_expired_lease_tells_who_was_lost",
    ),
    "poison job ends dead, spend is bounded, the queue moves": (
        "faults/test_errors_make_states.py::test_record_that_kills_its_process_ends_dead_and_one_command_replays_it",
        (
            "faults/test_interest_model_calls.py::"
            "test_runners_killed_while_the_model_thinks_ask_those_questions_once_more_and_no_other"
        ),
        (
            "faults/test_poison_spend.py::"
            "test_a_run_that_kills_its_process_at_each_answer_asks_no_more_often_than_it_may_be_tried"
        ),
        "integration/test_interest_budget.py::test_a_run_without_a_budget_asks_nothing_and_goes_on_when_it_gets_one",
    ),
    "model always times out: failed with its cause, the slot is free": (
        (
            "integration/test_tier_vectors.py::"
            "test_model_that_always_times_out_ends_its_step_with_the_cause_and_holds_up_nobody"
        ),
        "faults/test_errors_make_states.py::test_passing_failure_never_counts_as_an_attempt_and_ends_with_its_time",
        "integration/test_models_chat.py::test_a_server_that_never_answers_is_transient",
    ),
    "job longer than the visibility timeout has one effect": (
        "faults/test_broker_edges.py::test_job_longer_than_the_visibility_timeout_has_one_effect",
    ),
    "lease lost without a heartbeat: the old runner's commit is refused": (
        "faults/test_leases.py::test_runner_that_lost_its_lease_is_refused_and_the_effect_happens_once",
    ),
    "countdown longer than the visibility timeout makes one pass": (
        "faults/test_broker_edges.py::test_countdown_longer_than_the_visibility_timeout_makes_one_pass",
    ),
    "handler raises once: two attempts, done": (
        "faults/test_errors_make_states.py::test_each_kind_of_error_makes_its_own_state",
    ),
    "broker restarted twice, idle and busy: consumption goes on within 30 s": (
        "faults/test_servers_killed.py::test_consumption_goes_on_within_30_s_of_each_of_two_restarts_idle_and_busy",
        "faults/test_servers_killed.py::test_ingest_survives_kill_9_of_redis",
    ),
    "lost answer and a repeated call with one key: one operation, another body is refused": (
        "integration/test_remember.py::test_same_key_and_body_give_the_first_answer_and_change_nothing",
        "integration/test_remember.py::test_same_key_with_another_body_is_refused_without_its_text",
        "workflow/test_delivery.py::test_twenty_threads_that_remember_under_one_key_make_one_record_and_one_operation",
        (
            "integration/test_brain_put.py::"
            "test_brain_weak_02_a_key_makes_a_put_safe_to_repeat_and_is_refused_with_another_body"
        ),
        "integration/test_forget.py::test_a_key_makes_forgetting_safe_to_repeat",
    ),
    "message ahead of its commit": (
        (
            "workflow/test_delivery.py::"
            "test_message_that_is_ahead_of_its_commit_does_nothing_and_the_step_is_done_after_it"
        ),
    ),
    "broker down at publish": ("workflow/test_relay.py::test_message_whose_broker_was_away_is_published_by_the_relay",),
    "chord whose header is retried": (
        "faults/test_chords.py::test_header_task_that_was_postponed_still_gets_its_report",
    ),
    "chord delivered twice": (
        "faults/test_chords.py::test_chord_delivered_twice_has_one_effect_and_one_report",
        "faults/test_interest_survives.py::test_every_message_delivered_twice_does_everything_once",
    ),
    "chord without members": ("faults/test_chords.py::test_chord_without_members_runs_its_body",),
    "one failing header task": (
        "faults/test_chords.py::test_header_step_that_ends_dead_makes_the_operation_partial_and_the_report_says_so",
    ),
    "results expire after a second: the sweeper completes the chord": (
        "faults/test_chords.py::test_chord_whose_results_expire_after_a_second_is_completed_by_the_sweeper",
        "faults/test_chords.py::test_chord_whose_counter_was_lost_is_completed_by_the_sweeper",
    ),
    "many small operations leave no keys and no channels": (
        "faults/test_broker_edges.py::test_many_small_operations_leave_no_keys_and_no_channels",
    ),
    "two beats for several ticks": ("workflow/test_beat.py::test_two_beats_at_once_double_no_effect",),
    "edges of daylight saving in two zones": (
        "integration/test_remember.py::test_records_around_the_edges_of_daylight_saving_are_in_the_order_they_happened",
    ),
    "queue that nobody consumes": (
        (
            "workflow/test_stopped_workers.py::"
            "test_producers_answer_without_workers_and_the_backlog_tells_which_queue_nobody_serves"
        ),
    ),
    "slow embedder while a record goes cold": (
        "integration/test_tier_vectors.py::test_record_that_went_cold_while_it_was_embedded_gets_its_vector",
    ),
    "delete of a parent while a child is embedded": (
        "integration/test_brain_put.py::test_a_parent_that_is_deleted_while_its_part_is_embedded_takes_the_part_along",
    ),
    "source deleted while a judge thinks about it: nothing derived survives": (
        (
            "integration/test_forget.py::"
            "test_nothing_derived_survives_a_source_that_is_forgotten_while_a_judge_thinks_about_it"
        ),
    ),
    "overlapping puts and deletes: no deadlock surfaces, no dangling edge": (
        (
            "integration/test_brain_put.py::"
            "test_writers_and_deleters_that_overlap_meet_no_deadlock_and_leave_no_dangling_edge"
        ),
        "faults/test_brain_storm.py::test_the_graph_is_in_step_by_itself_after_a_storm",
    ),
    "embedding model changed, to another dimension and to another model of the same": (
        "integration/test_tier_vectors.py::test_another_model_embeds_everything_again_in_the_background",
        "integration/test_tier_vectors.py::test_vectors_of_another_model_or_length_are_not_compared",
        "integration/test_brain_kinds.py::test_brain_weak_13_another_model_embeds_everything_again_in_the_background",
        (
            "integration/test_interest_conformance.py::"
            "test_another_model_embeds_interests_again_in_batches_that_do_not_wait_for_each_other"
        ),
    ),
    "relative times, naive times mixed with aware ones": (
        "integration/test_times_given.py::test_a_relative_or_incomplete_time_is_refused_by_every_surface",
        (
            "integration/test_times_given.py::"
            "test_a_naive_time_among_others_is_refused_and_nothing_of_the_call_is_stored"
        ),
        (
            "integration/test_times_given.py::"
            "test_moments_in_other_offsets_are_one_moment_and_stand_in_the_order_they_happened"
        ),
        "unit/test_clean.py::test_moments_are_converted_to_utc_and_naive_ones_refused",
        "integration/test_cli.py::test_text_comes_from_standard_input_and_a_naive_time_is_refused",
    ),
    "bait from far away and a judge that always says yes": (
        (
            "integration/test_interest_conformance.py::"
            "test_a_judge_that_always_says_yes_is_not_asked_about_what_is_far_away"
        ),
    ),
}
