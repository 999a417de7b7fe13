"""What training costs: steps timed side by side, and a step, a forward or a text profiled part by
part.

A bench times the steps of several arms:

    bench_arms                 compose the arms that were typed
    clock                      how work is timed
    timed_arm                  one arm whose step is timed
    bench                      the bench: warm up, take turns, ask the judge
    bench_result               its result
    bench_schema               its types as JSON
    bench_json                 write it
    bench_table                its result as a table

A profile takes one step, forward or text apart:

    subject                    what a profile can be of
    roofline                   count what the subject computes
    peaks                      measure the peaks of the machine
    profiler_timing            time the subject, plain and under torch's profiler
    profiler_ranges            mark modules for the profiler
    profiler_events            read the time that it saw of each
    mixer_moments              tell what a mixer computes, by its operations
    profile                    the profile: count, time, bound

What a profile shows:

    profile_record             put what was counted and what was timed into one record
    profile_schema             its types as JSON
    profile_file               write and read its file
    profile_groups             its rows added up by part, layer and group
    profile_tables             it as tables
    ceilings                   what each option could win at most
    largest_parts              its largest parts, and the command that measures a gain there
    profile_difference         two profiles compared
    profile_difference_table   what changed between two, as tables

Single questions:

    attention_lengths          a layer's attention by itself, against the sequence length
    fit                        the largest micro-batch that fits, for `nocap.train --fit`
"""
