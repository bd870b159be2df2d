"""The use of replicas and stages as Vidur wrote it: the largest and the mean value of each figure."""

USE: dict[str, dict[str, tuple[float, float]]] = {
    "70b_ft_fixed": {
        "replica_1_memory_usage": (30.7692307692, 21.6839360461),
        "replica_1_stage_1_busy_time_percent": (100, 100),
        "replica_1_stage_1_mfu": (58.2338189179, 11.2298614167),
    },
    "70b_orca_conv200_max1024": {
        "replica_1_memory_usage": (30.7692307692, 12.5898991199),
        "replica_1_stage_1_busy_time_percent": (100, 86.600096269),
        "replica_1_stage_1_mfu": (56.6030154961, 5.78668406627),
    },
    "70b_sarathi_conv200": {
        "replica_1_memory_usage": (61.6887019231, 14.3073428464),
        "replica_1_stage_1_busy_time_percent": (100, 86.8563770793),
        "replica_1_stage_1_mfu": (52.7408045035, 8.98378235685),
    },
    "70b_sarathi_conv200_blocks600": {
        "replica_1_memory_usage": (100, 75.3939914464),
        "replica_1_stage_1_busy_time_percent": (100, 96.0861333344),
        "replica_1_stage_1_mfu": (52.7408045035, 10.6324326604),
    },
    "70b_sarathi_conv200_pp2": {
        "replica_1_memory_usage": (6.04858398438, 1.52141485481),
        "replica_1_stage_1_busy_time_percent": (100, 76.407225441),
        "replica_1_stage_1_mfu": (52.7408045035, 4.49952269539),
        "replica_1_stage_2_busy_time_percent": (100, 76.4234352656),
        "replica_1_stage_2_mfu": (52.7260417914, 4.49246538402),
    },
    "70b_vllm_conv200": {
        "replica_1_memory_usage": (64.5733173077, 15.0003220001),
        "replica_1_stage_1_busy_time_percent": (100, 86.9551597428),
        "replica_1_stage_1_mfu": (58.4486974333, 9.07421969151),
    },
    "70b_vllm_conv200_blocks600": {
        "replica_1_memory_usage": (100, 75.5948454569),
        "replica_1_stage_1_busy_time_percent": (100, 96.2307259301),
        "replica_1_stage_1_mfu": (59.054534857, 10.5292567924),
    },
    "7ba_lightllm_conv200": {
        "replica_1_memory_usage": (7.89921201509, 1.78599008355),
        "replica_1_stage_1_busy_time_percent": (100, 51.6101073204),
        "replica_1_stage_1_mfu": (62.0473804557, 1.84540892492),
    },
    "7ba_sarathi_conv1000_r2_lor": {
        "replica_1_memory_usage": (18.588362069, 3.65509283158),
        "replica_1_stage_1_busy_time_percent": (100, 82.8223467027),
        "replica_1_stage_1_mfu": (58.4306126273, 5.2438771211),
        "replica_2_memory_usage": (66.5948275862, 26.0832115372),
        "replica_2_stage_1_busy_time_percent": (100, 96.8343771214),
        "replica_2_stage_1_mfu": (59.106040179, 17.6624268759),
    },
    "7ba_sarathi_conv1000_r2_random": {
        "replica_1_memory_usage": (28.8658405172, 10.7136368757),
        "replica_1_stage_1_busy_time_percent": (100, 95.2954819851),
        "replica_1_stage_1_mfu": (57.5235610065, 12.0519154844),
        "replica_2_memory_usage": (30.3879310345, 8.68841125864),
        "replica_2_stage_1_busy_time_percent": (100, 95.7970248123),
        "replica_2_stage_1_mfu": (59.106040179, 10.8216329994),
    },
    "7ba_sarathi_conv1000_r2_rr": {
        "replica_1_memory_usage": (23.5048491379, 9.11784715304),
        "replica_1_stage_1_busy_time_percent": (100, 96.9540600376),
        "replica_1_stage_1_mfu": (58.5867129251, 11.1910689749),
        "replica_2_memory_usage": (31.6002155172, 10.0460773794),
        "replica_2_stage_1_busy_time_percent": (100, 94.8685037566),
        "replica_2_stage_1_mfu": (59.106040179, 11.6572701946),
    },
    "7ba_sarathi_pp2": {
        "replica_1_memory_usage": (3.55834960938, 0.966718262491),
        "replica_1_stage_1_busy_time_percent": (100, 34.8151090372),
        "replica_1_stage_1_mfu": (59.106040179, 0.906118255822),
        "replica_1_stage_2_busy_time_percent": (100, 34.8798601616),
        "replica_1_stage_2_mfu": (59.0329963139, 0.904677769723),
    },
    "7ba_syn_gamma_zipf": {
        "replica_1_memory_usage": (7.78601694915, 2.29454002865),
        "replica_1_stage_1_busy_time_percent": (100, 45.58022349),
        "replica_1_stage_1_mfu": (57.6961346334, 7.003572281),
    },
    "7ba_syn_poisson_fixed": {
        "replica_1_memory_usage": (4.94342672414, 1.08317223053),
        "replica_1_stage_1_busy_time_percent": (100, 69.5423519166),
        "replica_1_stage_1_mfu": (56.9887631402, 6.37396193819),
    },
    "7ba_syn_poisson_uniform": {
        "replica_1_memory_usage": (8.42161016949, 3.12375030112),
        "replica_1_stage_1_busy_time_percent": (100, 97.8126523469),
        "replica_1_stage_1_mfu": (56.9887631402, 9.60683305219),
    },
    "7ba_syn_static_tracelen": {
        "replica_1_memory_usage": (57.2695974576, 28.9953509488),
        "replica_1_stage_1_busy_time_percent": (100, 100),
        "replica_1_stage_1_mfu": (56.9887631402, 17.1790554388),
    },
    "7bh_sarathi_code300": {
        "replica_1_memory_usage": (20.0296336207, 4.45212920046),
        "replica_1_stage_1_busy_time_percent": (100, 13.1930518004),
        "replica_1_stage_1_mfu": (47.182948977, 3.07758745289),
    },
    "7bh_sarathi_conv1000": {
        "replica_1_memory_usage": (37.2036637931, 11.5157163928),
        "replica_1_stage_1_busy_time_percent": (100, 95.6102768227),
        "replica_1_stage_1_mfu": (47.182948977, 7.12635470542),
    },
    "7bh_vllm_conv1000": {
        "replica_1_memory_usage": (41.1503232759, 12.367411417),
        "replica_1_stage_1_busy_time_percent": (100, 95.63756628),
        "replica_1_stage_1_mfu": (60.2494699555, 7.28378935199),
    },
}
