"""Long tests, which run with the slow ones, by file; a quicker one looks at most of what each of them does.

Their cost was measured with `--durations`. Pages that compile much are here with few draws, too. `tests/conftest.py`
marks them, and refuses names that no test has any more.
"""

from __future__ import annotations

from collections.abc import Iterable

_NAMES = """
conformance/test_behaviours.py
    test_draws_are_those_of_one_device[nuts-over two axes 2x2x2]
    test_tuning_is_pooled_over_all_chains_and_equal_on_all_devices[sizes0-hmc]
conformance/test_exact_answers.py
    test_conjugate_regression[mams-2-4]
    test_conjugate_regression[blackjax mala-2-4]
    test_conjugate_regression[hmc-2-4]
conformance/test_exact_starts.py
    test_exact_draws_stay_exact[chees]
    test_exact_draws_stay_exact[mala of the docs]
conformance/test_guides.py
    test_parameters_go_to_the_real_line_and_back[full_rank]
    test_parameters_go_to_the_real_line_and_back[a stranger's]
    test_a_strangers_guide_does_what_others_do
    test_every_guide_has_the_members[full_rank]
    test_draws_are_those_of_the_density[a stranger's]
    test_density_from_the_way_of_drawing_is_the_same[a stranger's]
    test_draws_are_those_of_the_density[full_rank]
    test_every_guide_has_the_members[a stranger's]
    test_density_from_the_way_of_drawing_is_the_same[full_rank]
    test_the_same_seed_draws_the_same[full_rank]
    test_the_same_seed_draws_the_same[a stranger's]
conformance/test_large_totals.py
    test_draws_are_those_of_a_log_density_without_the_constant[nuts]
    test_differences_of_nearby_points_are_right_to_a_hundredth[4-True]
conformance/test_minibatch_kernels.py
    test_draws_have_the_moments_that_step_and_batch_size_say[sgld]
    test_draws_have_the_moments_that_step_and_batch_size_say[sgld, all rows]
    test_chains_are_the_same_on_any_number_of_devices[sghmc-2-4]
    test_draws_have_the_moments_that_step_and_batch_size_say[sghmc]
    test_every_chain_has_rows_of_its_own
    test_rows_over_devices[sgld-sizes0]
conformance/test_reducers.py
    test_a_run_that_goes_on_elsewhere_knows_what_one_run_knows[2-then0-None-kernel0]
conformance/test_stores.py
    test_a_store_has_the_draws_of_memory[mams]
conformance/test_tuners.py
    test_a_tuner_of_a_stranger_stands_beside_ours
mesh/test_collectives.py
    test_a_factorisation_sends_the_gradients_of_the_films_and_a_total
    test_one_all_reduce_per_leapfrog_and_none_over_chains[with_a_local_variable-two lanes]
mesh/test_ensemble_on_meshes.py
    test_losses_and_predictions_are_those_of_one_device[2-4]
    test_the_ensembles_own_scores_are_of_the_mean_of_its_members
mesh/test_fit_on_meshes.py
    test_the_same_on_one_device_and_on_eight[program-13]
    test_the_same_on_one_device_and_on_eight[mean_field-16]
    test_a_model_that_adds_over_the_mesh_itself
mesh/test_joint_spmd.py
    test_log_density_and_gradients_of_a_model_with_local_and_global_variables[4]
mesh/test_launch.py
    test_a_normal_end_is_one_even_where_processes_end_at_different_times
    test_what_differs_between_processes_is_named_in_all
    test_a_call_of_one_process_alone_is_refused_in_words
mesh/test_model_axis.py
    test_a_variable_that_is_given_is_cut_as_well[condition]
    test_log_density_and_gradient[over 4]
mesh/test_models_on_meshes.py
    test_rows_that_divide[fori_loop from 0.-2-4]
    test_rows_that_divide[the user's own pmean, in a scan-2-4]
    test_rows_that_divide[the user's own psum of everything-2-4]
    test_rows_that_do_not_divide[regression with unused variables and data]
    test_rows_that_do_not_divide[jitted helper with a local and a global output]
    test_rows_that_divide[a term that sees only the number of rows-2-4]
    test_positions_and_values_map_back_and_forth[simplices per row-13-8]
    test_rows_that_do_not_divide[supports that depend on other variables, local and global]
    test_rows_that_do_not_divide[multivariate normals per row]
mesh/test_own_draws.py
    test_each_process_holds_its_chains_and_finds_what_one_finds
    test_a_checkpoint_of_two_is_continued_by_one
    test_files_that_one_of_two_writes_are_those_of_one_process
    test_a_block_exchanges_no_draws
    test_a_store_of_two_is_that_of_one_and_each_writes_its_own_chunks
mesh/test_run_communication.py
    test_compiled_programs_send_what_the_model_says[NUTS, a variable per row-mesh4]
mesh/test_sharded.py
    test_one_value_along_each_axis_and_one_along_both
mesh/test_smc_on_meshes.py
    test_sharded_data_and_variables[sizes0]
mesh/test_spread_reducers.py
    test_the_same_on_any_mesh[some, reduced 2x2]
    test_states_stay_where_the_rows_are
test_docs.py
    test_python_blocks_run[docs/many-data-sets.md-few]
    test_python_blocks_run[docs/discrete.md-few]
    test_python_blocks_run[docs/report.md-few]
    test_python_blocks_run[docs/predictive.md-few]
    test_python_blocks_run[docs/extending.md-few]
    test_python_blocks_run[docs/ensembles.md-few]
    test_python_blocks_run[docs/images.md-few]
    test_python_blocks_run[docs/variational.md-few]
    test_python_blocks_run[docs/coming-from/eight-models.md-few]
    test_python_blocks_run[docs/sampling.md-few]
    test_python_blocks_run[docs/when-the-verdict-says-no.md-few]
    test_python_blocks_run[docs/networks.md-few]
    test_python_blocks_run[docs/diagnostics.md-few]
    test_python_blocks_run[docs/devices.md-few]
    test_python_blocks_run[docs/tracing.md-few]
test_gallery.py
    test_a_model_runs_at_small_size[capture_recapture]
    test_a_model_runs_at_small_size[bradley_terry]
unit/adaptation/test_step_size.py
    test_chains_that_begin_far_away_arrive
unit/adaptation/test_stuck_chains.py
    test_on_every_mesh_the_same_chains_are_moved[1]
unit/cli/data/test_hostile_data.py
    test_arguments[draws of 10^30]
unit/cli/test_sample.py
    test_a_kernel_a_reducer_a_check_and_a_figure_of_ones_own
    test_ctrl_c_in_sampling_is_status_130_with_the_draws_written
unit/cli/test_saved.py
    test_a_command_that_is_interrupted_is_watched_and_resumed[store]
    test_checkpoints_whose_draws_are_elsewhere[summary]
    test_a_run_that_has_ended[store and checkpoint]
    test_a_run_that_has_ended[checkpoint]
    test_a_run_that_goes_on[store and checkpoint]
    test_a_run_that_goes_on[checkpoint]
    test_a_command_that_is_interrupted_is_watched_and_resumed[memory]
unit/demos/test_movielens.py
    test_the_most_probable_position_is_one_where_the_gradient_vanishes
    test_what_is_hidden_changes_nothing
unit/density/test_imputation.py
    test_draws_are_those_of_the_posterior
    test_predictions_are_of_the_whole_variable
unit/diagnostics/test_verdict.py
    test_chains_that_agree_are_hardly_ever_said_to_differ[3]
    test_chains_that_agree_are_hardly_ever_said_to_differ[1]
unit/distributions/test_bernoulli.py
    test_the_log_density_is_numpyros[mask]
    test_the_log_density_is_numpyros[to_event]
    test_so_are_further_derivatives
    test_the_log_density_is_numpyros[as it is]
    test_a_logistic_regression_has_the_right_gradient_at_nothing[False]
    test_the_log_density_is_numpyros[expand]
    test_the_log_density_is_numpyros[all of them]
unit/distributions/test_bijections.py
    test_a_cholesky_factor_has_each_number_once_and_comes_back[6]
    test_a_cholesky_factor_has_each_number_once_and_comes_back[5]
    test_a_cholesky_factor_has_each_number_once_and_comes_back[2]
    test_round_trip_and_determinant[0.5]
    test_round_trip_and_determinant[3.0]
unit/distributions/test_blocked.py
    test_any_block_gives_the_same[50]
    test_any_block_gives_the_same[1]
    test_rows_that_do_not_divide_on_any_mesh[sizes0]
unit/distributions/test_logit_density.py
    test_values_in_the_middle_have_the_density_that_they_had
    test_chains_hold_the_mass_at_the_upper_end[0.1-0.1-[0.5]]
unit/distributions/test_row_sums.py
    test_the_gradient_is_one_for_each_term[300000]
unit/ensembles/test_bayesian.py
    test_the_moments_are_those_of_the_weights_passed
unit/ensembles/test_checkpoint.py
    test_a_checkpoint_of_another_training_is_refused_and_what_differs_is_named[order's seed]
    test_a_checkpoint_of_another_training_is_refused_and_what_differs_is_named[members]
    test_a_loop_that_is_left_is_saved_and_continued
    test_what_was_saved_by_time_is_continued_after_a_failure[4]
    test_every_damage_of_a_checkpoint_is_one_clear_error_or_changes_nothing
    test_a_training_after_another_is_continued_with_the_same_members
    test_after_ctrl_c_the_same_call_leads_to_the_same_members[5]
    test_members_that_are_changed_meanwhile_are_refused
    test_the_same_ensemble_continues_too
    test_a_checkpoint_changes_nothing_and_more_epochs_train_longer
    test_after_ctrl_c_the_same_call_leads_to_the_same_members[4]
    test_permanent_saves_are_kept_and_restored
    test_a_line_of_the_log_is_an_epoch
    test_sigterm_within_a_step_saves_first
    test_a_training_written_anew_is_continued
    test_held_out_rows_are_scored_after_each_epoch
    test_a_folder_of_an_earlier_release_is_continued
    test_float64_and_half_precision_are_resumed
    test_nested_values_and_none_at_all_are_resumed
    test_a_checkpoint_of_another_training_is_refused_and_what_differs_is_named[seed]
unit/ensembles/test_ensemble.py
    test_a_saved_ensemble_goes_on_elsewhere
    test_every_member_is_the_network_trained_alone[dropout-2-4]
    test_optimisers_that_look_at_the_loss[lbfgs]
    test_orders_of_their_own_differ_and_repeat
    test_progress_shows_steps_epochs_and_what_was_measured_and_changes_nothing[own]
    test_an_interrupted_step_is_made_by_all_members
    test_statistics_of_batches_are_not_trained
    test_every_member_is_the_network_trained_alone[nnx-2-4]
    test_what_was_saved_of_others_is_refused
unit/flows/test_transforms.py
    test_what_is_said_within_a_compiled_function_stays_there[InverseAutoregressive]
    test_a_density_multiplies_by_each_matrix_once[MaskedAutoregressive]
    test_one_autoregression
    test_a_density_goes_through_each_network_once[scales]
    test_couplings_in_a_loop_are_couplings_one_by_one
    test_a_density_goes_through_each_network_once[couplings]
unit/inputs/test_known_data.py
    test_every_row_keeps_its_level_and_every_column_its_place
unit/inputs/test_needed_values.py
    test_a_run_says_what_is_compiled_in_and_other_values_are_refused
unit/jaxprs/test_group_sums.py
    test_few_groups_are_no_scatter_and_the_same_sums[two indices]
    test_few_groups_are_no_scatter_and_the_same_sums[inner jit]
    test_few_groups_are_no_scatter_and_the_same_sums[mapped]
    test_few_groups_are_no_scatter_and_the_same_sums[row]
    test_few_groups_are_no_scatter_and_the_same_sums[column]
    test_the_gradient_of_a_model_has_no_scatter_on_a_gpu[value_and_grad]
    test_indices_outside_are_clipped_or_dropped_as_jax_does
    test_the_gradient_of_a_model_has_no_scatter_on_a_gpu[log_density]
unit/jaxprs/test_interpreters.py
    test_interpreters_agree_with_plain_evaluation
unit/jaxprs/test_lanes_last.py
    test_distributions_give_what_vmap_gives[7]
unit/kernels/test_blackjax.py
    test_an_algorithm_of_blackjax_recovers_a_gaussian[rmh]
unit/kernels/test_chees.py
    test_the_length_is_where_chees_is_largest
    test_all_chains_make_the_same_number_of_leapfrogs_and_draws_differ_in_theirs
    test_a_given_length_is_kept_and_one_chain_is_enough_for_it
unit/kernels/test_from_draw.py
    test_a_function_recovers_a_correlated_gaussian_with_step_size_and_metric_learned[sizes0]
unit/kernels/test_laps.py
    test_draws_are_of_the_posterior_and_warm_up_has_two_parts
    test_without_warm_up_every_draw_is_adjusted
unit/kernels/test_leapfrog.py
    test_trajectories_near_a_period_of_the_motion_still_mix
    test_the_energy_error_falls_with_the_square_of_the_step_size[dense]
    test_hmc_learns_the_metric_where_it_learns_the_step_size
unit/kernels/test_mams.py
    test_what_is_not_finite_is_a_rejected_divergence[mams]
unit/kernels/test_minibatch_kernels.py
    test_a_network_of_random_weights
    test_a_scale_that_terms_of_the_number_of_rows_decide
    test_the_verdict_says_what_it_cannot_see
    test_another_step_size_compiles_nothing
    test_a_temperature_is_told
    test_what_steps_lead_beyond_all_bounds_is_a_divergence_and_no_draw
unit/kernels/test_nuts.py
    test_statistics_of_trees
    test_so_they_are_however_short_blocks_are
unit/kernels/test_tree.py
    test_no_step_size_resonates[0.6]
unit/language/test_random_variable.py
    test_a_drawn_value_has_batch_and_event_shape[distribution4-shape4]
    test_a_drawn_value_has_batch_and_event_shape[distribution2-shape2]
    test_data_stretch_batch_dimensions_of_size_one
unit/learning/test_ascent.py
    test_a_logistic_regression_climbs_from_zero
    test_a_factorisation_of_many_coordinates_begins_near_its_bound
    test_rows_in_blocks_curve_as_rows_in_one_piece_do
    test_the_maximum_of_a_regression_is_found_from_zero[init1]
    test_hessians_are_whole_whatever_is_left_of_the_last_lanes[7]
    test_hessians_are_whole_whatever_is_left_of_the_last_lanes[8]
    test_hessians_are_whole_whatever_is_left_of_the_last_lanes[9]
    test_the_maximum_of_a_regression_is_found_from_zero[None]
    test_hessians_are_whole_whatever_is_left_of_the_last_lanes[23]
unit/learning/test_compiled.py
    test_what_is_told_apart_is_compiled_anew[options0]
    test_what_a_model_reads_from_outside_is_read_anew[family]
    test_a_second_fit_of_a_family_runs_the_model_once
    test_draws_of_a_second_fit_of_a_family_do_not_run_the_model
    test_what_a_model_reads_from_outside_is_read_anew[program]
    test_what_is_told_apart_is_compiled_anew[options2]
    test_what_is_told_apart_is_compiled_anew[options1]
unit/marginals/test_against_numpyro.py
    test_density_and_gradient[capture_recapture]
    test_density_and_gradient[hidden_markov]
    test_density_and_gradient[mixture]
unit/marginals/test_loops.py
    test_sums_are_exact[second_order]
    test_a_posterior_recovers_and_predicts
    test_a_discrete_first_state_is_a_neighbour_of_the_first_step_only
    test_recovered_states_have_the_exact_distribution
unit/marginals/test_marginalize.py
    test_recover_refuses_other_posteriors
unit/marginals/test_random_models.py
    test_forests
unit/mesh/test_devices.py
    test_a_number_that_was_chosen_on_purpose_is_not_advised_against
    test_asked_for_in_time_there_are_as_many
unit/mesh/test_jax_internals.py
    test_without_all_that_can_be_spared_it_runs_and_says_what_it_could_not_compare
unit/mesh/test_jax_release.py
    test_whatever_computes_refuses_it[mcmc]
    test_whatever_computes_refuses_it[compile]
unit/mesh/test_lapack_batches.py
    test_many_factorisations_at_once_end
unit/mesh/test_workarounds.py
    test_hashes_that_are_chained_are_compiled_in_time
    test_an_array_changed_in_place_is_read_as_it_was_without_the_work_around[import phalanx--0.0]
    test_an_array_changed_in_place_is_read_as_it_was_without_the_work_around[import phalanx;\
 phalanx.trace(lambda: None)()--1.0]
    test_an_array_changed_in_place_is_read_as_it_was_without_the_work_around[import phalanx;\
 phalanx.trace(lambda: None)()-fresh-constants-0.0]
unit/networks/test_networks.py
    test_weights_are_arrays_and_gradients_are_theirs[nnx]
    test_the_same_network_as_random_variables_and_as_a_member[linen]
    test_a_module_gives_what_its_own_library_says
unit/networks/test_pixels.py
    test_a_window_that_covers_all_is_none[1000]
    test_gradients_of_levels_are_those_of_a_softmax[0.3]
    test_at_no_temperature_each_pixel_is_the_most_probable[1e-08]
    test_at_no_temperature_each_pixel_is_the_most_probable[1e-40]
    test_the_log_likelihood_is_the_sum_of_its_conditionals[window, logistics]
    test_drawing_with_the_cache_draws_what_it_draws_without[window, logistics]
    test_half_precision_is_computed_in_and_not_kept
    test_at_no_temperature_each_pixel_is_the_most_probable[0.0]
    test_gradients_of_levels_are_those_of_a_softmax[1.0]
    test_gradients_of_levels_are_those_of_a_softmax[temperature2]
unit/particles/test_smc.py
    test_persistent_sampling_weighs_the_particles_of_all_temperatures
    test_the_evidence_has_a_closed_form[regression]
    test_any_kernel_moves_the_particles[nuts]
unit/posterior/criticism/test_log_likelihood.py
    test_rows_that_are_padded_on_a_mesh_have_no_term[masked]
    test_reducers_accumulate_densities_that_are_not_stored[True]
unit/posterior/criticism/test_loo.py
    TestNumbers::test_a_run_that_stores_no_draws
unit/posterior/test_containers.py
    test_rows_on_devices
    test_observations_that_share_states_are_data
unit/posterior/test_names.py
    test_whatever_the_levels_their_order_and_their_subset
    test_calibration_with_a_compiled_sampler
    test_each_row_is_predicted_as_its_own_group[False]
    test_given_names_stay_with_a_fit
    test_each_row_is_predicted_as_its_own_group[True]
    test_given_names_stay_with_a_run
unit/posterior/test_posterior.py
    test_the_examples_of_the_methods_hold
unit/posterior/test_predictive.py
    TestPredictive::test_agrees_with_numpyro[regression-prior]
    TestPredictive::test_meshes_change_nothing[11]
    TestWhichDraws::test_the_prior_has_as_many_as_are_asked_for
    TestPrior::test_every_variable_is_drawn_without_a_run
unit/programs/test_centring.py
    test_density_is_that_of_the_model_times_the_jacobian[laplace]
    test_density_is_that_of_the_model_times_the_jacobian[gumbel]
    test_density_is_that_of_the_model_times_the_jacobian[logistic]
    test_density_is_that_of_the_model_times_the_jacobian[log-normal]
    test_density_is_that_of_the_model_times_the_jacobian[walk]
    test_density_is_that_of_the_model_times_the_jacobian[multivariate]
    test_density_is_that_of_the_model_times_the_jacobian[multivariate student]
unit/programs/test_numpyro_language.py
    test_numpyro_infers_what_its_substitute_sets[sample0]
    test_random_modules_of_numpyros_are_inferred
    test_numpyro_infers_what_its_substitute_sets[sample1]
    test_a_model_has_the_log_density_it_has_there[scoped]
unit/programs/test_validity.py
    test_what_cannot_be_is_found_and_placed[case0-scale-1-index0--1.0-positive]
unit/reducers/test_any_draws.py
    test_reducers_say_what_float64_says
unit/reducers/test_batches_of_draws.py
    test_the_same_however_a_run_is_cut[ess of 3]
    test_the_same_however_a_run_is_cut[one draw]
    test_the_same_however_a_run_is_cut[thinned reservoir]
unit/reducers/test_hard_draws.py
    test_moments_within_their_stated_error[outlier first]
    test_moments_within_their_stated_error[far and whole]
    test_moments_within_their_stated_error[bfloat16]
    test_moments_within_their_stated_error[bool]
    test_constant_elements_are_told_from_those_that_are_not_finite_or_stuck[ess(1)]
unit/reducers/test_scales.py
    test_draws_of_every_size[bfloat16-moments]
unit/report/test_figures.py
    test_four_pictures_whatever_the_sizes[8-3000]
    test_pyplot_is_left_alone
unit/report/test_folder.py
    test_the_files_and_the_record
unit/report/test_model_draws.py
    test_rows_on_devices_are_observed_without_padding
    test_the_scales_of_the_metric_are_recorded
    test_the_prior_and_replicates_are_those_of_the_model
unit/report/test_write.py
    test_small_and_wide_runs_have_a_report[100-5]
    test_one_file_that_needs_nothing_beside_it
unit/run/test_bad_input.py
    test_a_gradient_that_is_not_finite
    test_a_log_density_that_is_not_finite_at_the_start_names_the_variables[nan-nan]
unit/run/test_centring.py
    test_tuning_of_other_positions_is_refused[was2-now2]
    test_the_tuning_of_a_posterior_has_its_centring
    test_files_containers_and_predictions_know_nothing_of_it
    test_a_variable_without_elements_is_left_alone
    test_tuning_of_other_positions_is_refused[auto-None]
    test_tuning_of_other_positions_is_refused[None-auto]
    test_a_run_that_goes_on_is_one_longer_run
unit/run/test_checkpoint.py
    test_another_run_is_refused_with_both_values[keep]
    test_models_and_reducers_that_differ_a_little_are_refused[<lambda>]
    test_sigterm_within_a_block_and_while_the_run_is_saved_loses_nothing[terminated_twice]
    test_a_run_that_is_lost_again_and_again_ends_with_the_same_draws[until-0.0]
    test_a_run_that_is_lost_again_and_again_ends_with_the_same_draws[reduced-0.0]
    test_a_run_that_is_lost_again_and_again_ends_with_the_same_draws[stored-0.0]
    test_other_data_models_and_releases_are_refused
    test_a_longer_run_goes_on_from_one_that_has_ended
    test_a_loaded_run_knows_its_data
    test_another_reducer_of_the_same_name_is_refused
    test_another_run_is_refused_with_both_values[seed]
    test_another_tuning_is_refused
    test_a_folder_that_cannot_be_written_is_reported_and_the_run_ends
    test_models_and_reducers_that_differ_a_little_are_refused[mcmc]
    test_a_damaged_folder_is_refused_or_the_save_before_is_used
    test_sigterm_saves_first
    test_a_kernel_that_differs_a_little_is_refused
unit/run/test_compilation.py
    test_what_adds_up_over_cpu_devices_is_not_kept[data-mcmc-sums-compiled-afresh-0]
    test_what_adds_up_over_cpu_devices_is_not_kept[chain-mcmc--5]
    test_what_adds_up_over_cpu_devices_is_not_kept[data-fit--0]
    test_double_precision_where_the_user_enables_it
    test_every_core_is_used_unasked_and_programs_are_kept_between_processes
unit/run/test_continue_run.py
    test_a_run_that_stores_nothing_goes_on_from_any_block
    test_a_change_that_is_small_beside_many_rows_is_refused
    test_from_a_file_in_another_sampler[sgld]
    test_a_kernel_with_a_state_of_its_own_goes_on_from_a_file
    test_reducers_of_a_users_own_go_on_from_a_file[Total]
    test_reducers_go_on
    test_one_number_that_differs_in_its_last_digit_is_refused[x-1499]
    test_what_does_not_fit_is_refused
    test_sharded_rows_and_their_padding
    test_an_interrupted_run_goes_on[nuts]
    test_a_run_in_another_floating_point_type_is_refused
    test_from_a_file_in_another_sampler[nuts]
    test_reducers_count_what_thinning_left_over
    test_one_number_that_differs_in_its_last_digit_is_refused[x-2999]
    test_a_run_goes_on_from_any_block_as_if_it_had_not_stopped[nuts]
unit/run/test_display.py
    test_a_model_that_is_compiled_says_so
unit/run/test_draw_store.py
    test_stored_draws_are_those_of_a_run_in_memory[{'num_samples': 1}]
    test_stored_draws_are_those_of_a_run_in_memory[{'thin': 3}]
    test_stored_draws_are_those_of_a_run_in_memory[{'until': Until(r_hat=None, ess=20, seconds=None)}]
    test_a_run_that_is_lost_again_and_again_ends_with_the_same_draws
    test_a_stored_posterior_is_saved_converted_and_continued
    test_a_store_is_never_overwritten_and_options_are_checked
    test_a_run_under_way_is_read_and_holds_no_draws_in_memory
unit/run/test_each.py
    test_a_model_with_terms_by_row_is_accepted[plates-of_rows0]
    test_reducers_have_a_result_for_each_data_set[keep1]
    test_an_argument_may_be_a_number_for_each_data_set
    test_the_data_of_a_run_are_those_at_its_call
    test_verdicts_and_summaries_are_those_of_each_posterior
    test_reducers_have_a_result_for_each_data_set[None]
    test_a_data_set_has_the_draws_of_a_run_of_its_own[kernel0]
    test_data_sets_of_several_lengths_have_the_draws_of_their_own_rows
    test_a_model_with_terms_by_row_is_accepted[vectors-of_rows2]
    test_initial_values_are_those_of_each_data_set
    test_a_data_set_has_the_draws_of_a_run_of_its_own[kernel1]
    test_a_data_set_has_the_draws_of_a_run_of_its_own[kernel3]
    test_the_posterior_of_a_data_set_knows_its_data
    test_data_sets_need_not_divide_over_the_devices
unit/run/test_each_store.py
    test_no_data_set_is_far_ahead_of_another
    test_data_sets_called_by_intervals_are_called_so_in_a_store
unit/run/test_executable_cache.py
    test_a_second_call_is_of_what_is_in_an_array_then[float32]
    test_a_second_call_is_of_what_is_in_an_array_then[float64]
unit/run/test_faults.py
    test_regions_without_a_density_are_not_entered_and_said[a gradient that is NaN]
    test_regions_without_a_density_are_not_entered_and_said[a density that is NaN]
    test_regions_without_a_density_are_not_entered_and_said[a density of zero]
    test_a_disk_that_fills_up_and_has_room_again
    test_a_folder_that_is_lost_during_a_run_is_said_and_loses_no_draw[file_in_its_place]
unit/run/test_reduce_phase.py
    test_a_state_that_all_lanes_share_is_counted_once_in_tiles[2]
    test_reduced_is_what_stored_draws_say[3-nuts]
    test_stored_draws_are_the_same_in_tiles[kernel0]
    test_stretches_add_up
    test_a_second_run_compiles_nothing
    test_a_reducer_that_fails_takes_no_draw_with_it
    test_groups_of_chains_that_started_apart_are_refused
    test_a_run_that_stores_no_draw_ends_with_a_verdict
unit/run/test_init_values.py
    test_superchains_begin_together_and_come_apart[hmc]
    test_a_run_begins_with_the_tuning_of_another
    test_the_prior
    test_rows_that_are_spread_and_padded[values]
    test_superchains_begin_together_and_come_apart[rwmh]
    test_how_warm_up_went_is_kept[hmc]
    test_values_for_all_chains_and_for_each
    test_what_is_not_given_is_drawn_as_before
    test_a_value_for_each_chain_is_never_taken_for_an_element_of_a_vector
unit/run/test_kills.py
    test_damaged_saves_are_found_and_the_one_before_is_used[20]
    test_killed_runs_end_with_the_draws_of_one_that_is_not[5]
unit/run/test_mcmc.py
    test_tuning_reaches_the_acceptance_it_aims_at[hmc]
    test_shapes_of_draws_and_statistics
    test_keep_chooses_what_is_stored
    test_a_given_step_size_is_kept_and_none_is_tuned
unit/run/test_save_warmup.py
    test_without_tuners_warm_up_and_draws_are_those_of_one_run
    test_partially_centred_positions_are_kept_on_the_scale_of_the_model
    test_a_run_that_is_lost_again_and_again_ends_with_the_same[True]
unit/run/test_state_after_every_block.py
    test_after_every_block_in_a_new_process[nuts-reduced]
    test_after_every_block_in_a_new_process[nuts-stored]
    test_after_every_block_in_a_new_process[nuts, centring-reduced]
    test_after_every_block_in_a_new_process[nuts, centring-stored]
unit/run/test_stored_programs.py
    test_other_models_and_sizes_have_other_files
    test_a_kernel_of_the_user_is_compiled_in_every_process
    test_a_damaged_file_is_written_anew
    test_the_draws_are_those_of_compiled_programs[stored-rwmh]
    test_the_draws_are_those_of_compiled_programs[reduced-rwmh]
    test_runs_on_many_data_sets_are_read
    test_particles_are_read_unless_a_distribution_is_a_users
    test_programs_that_call_lapack_are_compiled_in_every_process_if_jax_cannot_load_it
unit/run/test_stream.py
    test_reducers_know_all_draws_so_far
    test_data_that_are_in_memory_already_are_not_asked_for_again
    test_deterministic_variables_are_planned_for
unit/run/test_stream_checkpoint.py
    test_kill_9_and_sigterm[2]
    test_a_stream_that_is_lost_again_and_again_yields_the_same_blocks[reduced]
    test_a_stream_that_is_lost_again_and_again_yields_the_same_blocks[stored]
    test_a_stream_that_is_lost_again_and_again_yields_the_same_blocks[both]
    test_the_block_that_was_left_is_yielded_again
    test_ctrl_c_yields_what_was_made_once
    test_runs_and_streams_differ
unit/run/test_summing.py
    test_sums_on_any_mesh_are_those_of_all_draws
unit/run/test_threads.py
    test_models_in_threads_draw_what_they_draw_alone
    test_fits_and_ensembles_run_beside_the_main_thread
unit/run/test_watchdog.py
    test_chains_and_fits_are_watched_in_every_phase_and_leave_no_thread
unit/test_cli.py
    test_a_demo_writes_its_report_pictures_and_result[chains-20-12-options1-pictures1]
    test_mnist_in_its_own_format
unit/variational/test_coverage.py
    test_such_a_fit_is_not_good_and_its_evidence_not_reliable[half-from 0 to inf]
    test_nothing_is_said_where_draws_of_the_model_are_in_the_guides_support
    test_such_a_fit_is_not_good_and_its_evidence_not_reliable[box-from somewhere to]
    test_what_covers_the_posterior_is_told_apart
unit/variational/test_data_checks.py
    test_codes_of_no_group_are_refused[program-iterable]
    test_values_that_cannot_be_are_refused[likelihood-batches-y]
    test_values_that_cannot_be_are_refused[mean field-all rows-y]
    test_branches_that_data_choose_are_looked_at
    test_codes_of_no_group_are_refused[mean field-batches]
    test_codes_of_no_group_are_refused[mean field-minibatches]
    test_codes_of_no_group_are_refused[program-minibatches]
    test_codes_of_no_group_are_refused[amortised-minibatches]
    test_values_that_cannot_be_are_refused[program-all rows-y]
    test_what_is_masked_may_be_anything[1]
    test_batches_spread_over_devices_are_looked_at_on_one
    test_discrete_variables_and_directions_need_no_bijection_where_the_guide_is_a_program
    test_values_that_cannot_be_are_refused[mean field-all rows-shape]
    test_predictions_for_a_group_that_was_never_seen_are_refused[False]
    test_codes_of_no_group_are_refused[program-all rows]
    test_codes_of_no_group_are_refused[mean field-iterable]
    test_codes_of_no_group_are_refused[amortised-all rows]
    test_a_fit_to_batches_ends_where_a_code_is_outside_and_nowhere_else
    test_codes_of_no_group_are_refused[mean field-all rows]
    test_held_out_rows_and_new_rows_are_looked_at
    test_values_that_cannot_be_are_refused[program-all rows-shape]
    test_values_of_new_rows_are_looked_at[y]
    test_what_a_parameter_has_a_say_in_is_left_to_the_density
    test_a_value_is_refused_where_the_support_says_so
    test_codes_of_no_group_are_refused[program-batches]
    test_codes_of_no_group_are_refused[likelihood-all rows]
    test_codes_of_no_group_are_refused[likelihood-minibatches]
    test_codes_of_no_group_are_refused[amortised-batches]
    test_codes_of_no_group_are_refused[amortised-iterable]
unit/variational/test_fit.py
    test_a_support_may_depend_on_another_variable
    test_of_no_steps_a_guide_that_is_solved_is_the_one_given
    test_a_fit_from_a_file_is_drawn_from_by_no_steps
    test_a_full_rank_guide_becomes_the_posterior
    test_a_report_is_a_page_like_that_of_a_run
    test_the_evidence_is_the_evidence
    test_chains_begin_at_draws_of_a_fit
unit/variational/test_fit_checkpoint.py
    test_a_process_that_is_killed[9-1]
    test_a_process_that_is_killed[15-1]
    test_a_fit_that_is_lost_again_and_again_ends_with_the_same_parameters[None]
    test_permanent_saves_are_made_at_their_steps
    test_the_save_before_a_damaged_one_is_used
    test_ctrl_c_saves_the_fit
    test_other_fits_are_refused
unit/variational/test_fit_each.py
    test_discrete_variables_of_a_guide_that_is_a_program
    test_any_division_gives_the_fits_of_its_parts
    test_data_sets_of_several_lengths_have_the_fits_of_their_own_rows
    test_summaries_are_those_of_the_draws
    test_each_data_set_ends_when_its_own_guide_has_settled
    test_a_data_set_that_cannot_begin_spoils_no_other
    test_another_call_compiles_nothing_and_options_are_those_of_a_fit
    test_a_guide_that_takes_rows_is_refused_where_lengths_differ
    test_a_bad_data_set_is_named_and_spoils_no_other
    test_parameters_of_the_model_by_maximum_likelihood
unit/variational/test_fixed_draws.py
    test_draws_that_are_kept_to
    test_draws_have_the_moments_that_they_stand_for
    test_of_a_normal_the_answer_is_the_exact_one
    test_losses_verdict_and_evidence_are_as_of_every_fit
    test_a_draw_without_a_density_is_an_error_that_keeps_what_was_begun_with
    test_another_seed_and_other_data_compile_nothing
unit/variational/test_importance.py
    test_parameters_are_those_of_a_fit_or_given
    test_weights_that_are_nearly_equal_have_no_tail_to_be_afraid_of
    test_a_proposal_of_counts_runs[counts0]
    test_a_proposal_that_is_too_narrow_is_said_to_be
    test_a_density_that_is_no_number_is_told_from_none
    test_evidence_and_draws_are_those_of_the_posterior
    test_it_is_the_same_from_a_file
unit/variational/test_judge.py
    test_a_tail_beside_the_draws_is_seen
    test_a_heavy_tail_is_never_good
    test_a_mode_of_little_mass_is_none
    test_a_mode_without_draws_is_found_and_named[0.5-10.0]
    test_findings_and_pictures_name_entries_as_tables_do
unit/variational/test_likelihood.py
    test_a_few_rows_at_a_time
    test_rows_over_data_and_weights_over_model
    test_there_is_no_posterior
unit/variational/test_linear_response.py
    test_of_a_normal_it_is_exact
    test_what_has_none_is_refused
unit/variational/test_matching.py
    test_a_normal_posterior_is_found_in_a_few_steps
    test_the_error_of_the_bound_is_that_of_pairs
unit/variational/test_maximize.py
    test_where_there_is_none_it_is_refused
    test_what_runs_away_is_named
    test_laplace_is_exact_for_a_normal
    test_one_of_many_maxima_side_by_side_is_found
    test_a_maximum_at_the_edge_of_a_support_is_there[distribution1-1.0]
    test_a_maximum_at_the_edge_of_a_support_is_there[distribution2-0.0]
    test_a_lasso_has_kinks_and_smooth_coordinates
    test_coefficients_that_run_away_together_are_named
    test_beside_a_coordinate_at_the_edge_others_are_found
    test_it_is_the_mode_of_the_density_as_it_is_written[2]
    test_many_coordinates_of_different_scales
    test_init_chooses_among_modes
    test_a_kink_is_a_maximum
    test_a_maximum_at_the_edge_of_a_support_is_there[distribution0-0.0]
    test_a_plateau_beside_a_large_log_density_is_none
unit/variational/test_minibatch.py
    test_the_gradient_is_that_of_all_rows_in_expectation[amortised]
unit/variational/test_new_rows.py
    test_rows_held_out_and_rows_that_are_new[False]
    test_rows_held_out_and_rows_that_are_new[True]
unit/variational/test_objectives.py
    test_a_discrete_guide_becomes_the_posterior
    test_the_doubly_reparameterised_gradient_is_that_of_the_bound
    test_an_objective_of_ones_own
unit/variational/test_options.py
    test_a_checkpoint_of_another_fit_is_refused_and_what_differs_is_said[data-1]
    test_a_checkpoint_of_another_fit_is_refused_and_what_differs_is_said[data-2]
    test_a_checkpoint_of_another_fit_is_refused_and_what_differs_is_said[optimizer-1]
    test_a_checkpoint_of_another_fit_is_refused_and_what_differs_is_said[optimizer-2]
    test_a_checkpoint_of_another_fit_is_refused_and_what_differs_is_said[optimizer-model-]
    test_another_guide_is_all_that_is_named
    test_bounds_of_rows_in_float64
    test_guides_objectives_and_particles_are_told_apart
    test_weighted_bounds_come_near_the_likelihood
    test_by_maximum_likelihood_bounds_are_the_likelihood
    test_what_of_a_checkpoint_could_not_be_compared_is_said
unit/variational/test_pathfinder.py
    test_the_covariance_is_that_of_bfgs[8-40]
    test_the_covariance_is_that_of_bfgs[1-40]
    test_the_covariance_is_that_of_bfgs[0-1]
    test_the_covariance_is_that_of_bfgs[8-3]
    test_a_path_on_a_normal_ends_at_the_normal
unit/variational/test_refusals.py
    test_a_point_outside_of_a_support[-1-Delta has draws outside of .* Poisson]
    test_supports_with_bounds_that_are_computed_are_named_by_kind
    test_a_loss_that_is_not_finite_names_the_step_and_the_variable_and_keeps_what_was_learned
    test_what_a_reducer_of_draws_from_a_fit_cannot_do
    test_a_parameter_that_a_latent_variable_takes_out_of_bounds_is_named[lbfgs-unbounded-\
Variable 'y': its scale must be positive for a Normal]
    test_a_checkpoint_with_more_steps_than_asked_for
    test_a_rate_that_is_too_large_is_blamed[10.0]
    test_a_guide_that_does_not_fit_the_model[range]
    test_an_initial_value_outside_of_its_constraint
    test_options_that_are_none[line search]
    test_initial_values_of_another_shape_name_the_variable
    test_a_parameter_that_a_latent_variable_takes_out_of_bounds_is_named[None-unbounded-\
Variable 'y': its scale must be positive for a Normal]
    test_a_parameter_of_a_guide_without_a_constraint_is_named
unit/variational/test_reparameterize.py
    test_the_density_of_normals_is_the_models
unit/variational/test_steps.py
    test_particles_of_a_mean_field_come_in_pairs_of_opposite_noise[7-False]
    test_steps_that_draw_their_own_numbers_and_that_are_no_branches_are_the_same[AHEAD-guide0-16-1]
    test_particles_of_a_mean_field_come_in_pairs_of_opposite_noise[8-True]
    test_pairs_leave_no_noise_in_the_means_gradients_of_a_normal_posterior_and_no_bias_in_those_of_widths
    test_steps_that_draw_their_own_numbers_and_that_are_no_branches_are_the_same[AHEAD-guide0-16-4]
    test_those_of_objectives_that_are_no_averages_and_of_other_guides_do_not
    test_particles_of_a_mean_field_come_in_pairs_of_opposite_noise[4-True]
    test_the_density_along_the_path_is_that_of_the_draw
    test_particles_of_a_mean_field_come_in_pairs_of_opposite_noise[2-False]
    test_particles_of_a_mean_field_come_in_pairs_of_opposite_noise[1-False]
unit/variational/test_stored_fits.py
    test_a_fit_that_an_earlier_process_compiled_is_read[each]
    test_what_changes_a_fit_compiles_it_anew[model]
    test_what_changes_a_fit_compiles_it_anew[guide]
    test_what_changes_a_fit_compiles_it_anew[optimizer]
    test_a_damaged_file_is_compiled_anew
    test_code_of_the_user_is_traced_in_every_process[guide]
unit/variational/test_stream.py
    test_a_batch_unlike_the_first_ends_the_fit_which_keeps_what_it_has[more]
    test_a_list_begins_anew_and_an_iterator_ends_the_fit
    test_what_needs_all_rows_is_refused_and_the_rest_is_there
unit/variational/test_transport.py
    test_a_guide_is_a_transform_of_noise[full_rank]
    test_a_guide_is_a_transform_of_noise[low_rank]
    test_a_guide_is_a_transform_of_noise[flow]
    test_nothing_moves_where_nothing_changes[flow]
unit/variational/test_unbounded.py
    test_transformed_values_are_taken[sigmoid]
    test_transformed_values_are_taken[abs]
    test_variables_that_are_positive_are_taken[log]
    test_transformed_values_are_taken[shift]
    test_variables_that_are_positive_are_taken[bounded]
    test_values_that_may_be_any_number_are_taken
    test_transformed_values_are_taken[exp]
    test_transformed_values_are_taken[where]
    test_a_latent_variable_on_the_real_line_is_refused[hierarchy]
    test_transformed_values_are_taken[softplus]
    test_transformed_values_are_taken[square]
    test_variables_that_are_positive_are_taken[half]
    test_variables_that_are_positive_are_taken[far from zero]
    test_other_rates_are_taken[sgd]
    test_transformed_values_are_taken[held]
    test_transformed_values_are_taken[norm]
    test_transformed_values_are_taken[product]
    test_transformed_values_are_taken[clip]
    test_transformed_values_are_taken[relu]
    test_transformed_values_are_taken[maximum]
"""


def by_file() -> dict[str, list[str]]:
    """Return the names of the tests, such as `test_it[case]` or `TestIt::test_it`, by file within the folder."""
    found: dict[str, list[str]] = {}
    for line in _NAMES.strip().splitlines():
        if line.startswith(" "):
            found[list(found)[-1]].append(line.strip())
        else:
            found[line] = []
    return found


def unknown(collector: str, children: Iterable[str]) -> list[str]:
    """Return the entries within a file or class, given by its identifier, that none of its `children` contains."""
    entries = sorted(entry for entry in LONG_VARIANTS if entry.startswith(f"{collector}::"))
    known = [*children]
    return [entry for entry in entries if not any(entry == one or entry.startswith(f"{one}::") for one in known)]


LONG_VARIANTS = frozenset(f"tests/{file}::{name}" for file, names in by_file().items() for name in names)
"""Their identifiers, as pytest writes them."""
