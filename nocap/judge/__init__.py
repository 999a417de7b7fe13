"""Any set of runs, compared: what is better, what is worse, and what nobody can tell yet.

What is compared:

    question            what is asked of the runs
    arms                runs as arms: what a run is without its seed
    arm_labels          what an arm is called, and which arm a name means
    grouping            make arms of runs, and choose runs whose losses measure the same
    pairing             choose the baseline, and pair each arm with it
    joining             the runs of several people as one set
    confounders         differences between arms that forbid a verdict
    looks               how often two arms were looked at, which widens their interval

Intervals, and the words for a difference:

    interval            the interval of what a seed repeats, a textbook's
    cautious_interval   the interval of what a clock measures
    differences         the difference of two arms, all differences of a table, and their words
    arm_mean            an arm's number in one metric beside the baseline's
    times_and_memory    times and memory of an arm beside the baseline's
    pace                an arm's time for a token beside the baseline's
    equal_loss          an arm's time for the loss that it reaches, over the baseline's
    time_to_target      when an arm reaches a loss
    crossing            arms as a full crossing of keys
    factors             a crossed grid, key by key
    power               the least difference that a grid or study can show

Judges, one for each kind of question:

    compare             compare runs: the steps from records to a comparison
    comparison          the comparison: the arms, and what they rest on
    arm_rows            the row of each arm
    findings            what a comparison found, the surest first, and what to run next
    doubts              what should be doubted of a comparison

    claim               a claim as it is written down
    claim_gains         the gains that a claim is about: from measurements to pairs to gains
    gain                a gain in one metric, and its interval
    verdict             the verdict on a claim

    races               commands that took turns
    bench_speeds        steps that were timed in turns
    proposal            a program's proposals

A comparison as JSON:

    comparison_schema   its types
    comparison_json     a comparison as these types

Each judgement has a `word`: a `DifferenceWord` of an arm beside the baseline (`differences`), a
`ClaimWord` of a claim (`verdict`), a `ProposalWord` of a proposal (`proposal`). `word_with_reason`
is the text that a person reads. In JSON a difference has the word as `outcome` and that text as
`verdict`.
"""
